"""Who and what: system, identity and inventory fields (ids 1 to 94)."""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import BINARY, CHECKSUM32, FLAG, MASK64, MEMORY, STATE, TEXT, WORD32, state
from otelgpu.fields.row import Level

_ALL = Level.GLOBAL
_CI = Level.GPU_CI

# fmt: off
ROWS = (
    row(1, "DRIVER_VERSION", TEXT, "Version of the NVIDIA driver", new="SYSTEM_DRIVER_VERSION", level=_ALL, default=True),
    row(2, "NVML_VERSION", TEXT, "Version of the NVML library", new="SYSTEM_NVML_VERSION", level=_ALL),
    row(3, "PROCESS_NAME", TEXT, "Name of the process that reads the driver", new="SYSTEM_PROCESS_NAME", level=_ALL),
    row(4, "DEV_COUNT", state(4096), "GPUs that the driver sees on this node", new="SYSTEM_GPU_QUANTITY", sem="gpu.count", level=_ALL),
    row(5, "CUDA_DRIVER_VERSION", state(10**6), "Newest CUDA version that the driver serves, thousands for the major and hundreds for the minor number", sem="cuda.driver.version", level=_ALL),
    row(6, "BIND_UNBIND_EVENT", STATE, "Last change in the set of bound GPUs: a GPU came or went", new="SYSTEM_GPU_BIND_EVENT", sem="gpu.bind.event", level=_ALL),
    row(50, "DEV_NAME", TEXT, "Product name of the GPU", new="DEV_GPU_NAME", level=_CI),
    row(51, "DEV_BRAND", TEXT, "Brand family of the GPU", new="DEV_GPU_BRAND"),
    row(52, "DEV_NVML_INDEX", state(4096), "Index under which NVML lists the GPU; it may move when a GPU is lost", sem="gpu.index"),
    row(53, "DEV_SERIAL", TEXT, "Serial number printed on the board", new="DEV_BOARD_SERIAL"),
    row(54, "DEV_UUID", TEXT, "UUID of the GPU or MIG instance", new="DEV_GPU_UUID", level=_CI),
    row(55, "DEV_MINOR_NUMBER", state(4096), "Minor number of the device node /dev/nvidiaN", new="DEV_GPU_MINOR_NUMBER", sem="gpu.minor_number"),
    row(56, "DEV_OEM_INFOROM_VER", TEXT, "Version of the OEM object in the InfoROM", new="DEV_INFOROM_OEM_VERSION"),
    row(57, "DEV_PCI_BUSID", TEXT, "PCI address of the GPU", new="DEV_PCI_BUS_ID"),
    row(58, "DEV_PCI_COMBINED_ID", WORD32, "PCI device id and vendor id in one 32-bit word", sem="pci.device_id"),
    row(59, "DEV_PCI_SUBSYS_ID", WORD32, "PCI subsystem id in one 32-bit word", sem="pci.subsystem_id"),
    row(60, "GPU_TOPOLOGY_PCI", BINARY, "How the GPUs of this node are connected over PCIe", new="SYSTEM_PCI_TOPOLOGY"),
    row(61, "GPU_TOPOLOGY_NVLINK", BINARY, "How the GPUs of this node are connected over NVLink", new="SYSTEM_NVLINK_TOPOLOGY"),
    row(62, "GPU_TOPOLOGY_AFFINITY", BINARY, "Which CPUs are near which GPU", new="SYSTEM_GPU_AFFINITY"),
    row(63, "DEV_CUDA_COMPUTE_CAPABILITY", STATE, "CUDA compute capability, major number in the high and minor in the low half", new="CUDA_GPU_COMPUTE_CAPABILITY", sem="cuda.compute_capability"),
    row(64, "DEV_P2P_NVLINK_STATUS", MASK64, "Which other GPUs this one reaches peer to peer over NVLink, a state per peer", new="DEV_NVLINK_P2P_STATUS", sem="nvlink.p2p.status"),
    row(65, "DEV_COMPUTE_MODE", state(3), "Compute mode: 0 shared, 2 prohibited, 3 exclusive to one process", new="DEV_GPU_COMPUTE_MODE", sem="compute_mode"),
    row(66, "DEV_PERSISTENCE_MODE", FLAG, "Whether the driver stays loaded while nobody uses the GPU: 1 on, 0 off", new="DEV_GPU_PERSISTENCE_MODE", sem="persistence_mode"),
    row(67, "DEV_MIG_MODE", FLAG, "Whether the GPU is in MIG mode: 1 on, 0 off", sem="mig.mode"),
    row(68, "DEV_CUDA_VISIBLE_DEVICES_STR", TEXT, "Value for CUDA_VISIBLE_DEVICES that selects this device", new="CUDA_GPU_VISIBLE_DEVICES", level=_CI),
    row(69, "DEV_MIG_MAX_SLICES", state(64), "Most MIG slices this GPU can be cut into", sem="mig.slice.limit"),
    row(70, "DEV_CPU_AFFINITY_0", MASK64, "CPUs 0 to 63 near the GPU, a bit each", sem="cpu.affinity{word=0}"),
    row(71, "DEV_CPU_AFFINITY_1", MASK64, "CPUs 64 to 127 near the GPU, a bit each", sem="cpu.affinity{word=1}"),
    row(72, "DEV_CPU_AFFINITY_2", MASK64, "CPUs 128 to 191 near the GPU, a bit each", sem="cpu.affinity{word=2}"),
    row(73, "DEV_CPU_AFFINITY_3", MASK64, "CPUs 192 to 255 near the GPU, a bit each", sem="cpu.affinity{word=3}"),
    row(74, "DEV_CC_MODE", state(16), "Confidential computing mode: 0 off, 1 on", sem="confidential_computing.mode"),
    row(75, "DEV_MIG_ATTRIBUTES", BINARY, "Slices, engines and memory of a MIG instance"),
    row(76, "DEV_MIG_GI_INFO", BINARY, "Profile of a MIG GPU instance"),
    row(77, "DEV_MIG_CI_INFO", BINARY, "Profile of a MIG compute instance"),
    row(80, "DEV_ECC_INFOROM_VER", TEXT, "Version of the ECC object in the InfoROM", new="DEV_INFOROM_ECC_VERSION"),
    row(81, "DEV_POWER_INFOROM_VER", TEXT, "Version of the power management object in the InfoROM", new="DEV_INFOROM_POWER_VERSION"),
    row(82, "DEV_INFOROM_IMAGE_VER", TEXT, "Version of the InfoROM image as a whole", new="DEV_INFOROM_IMAGE_VERSION"),
    row(83, "DEV_INFOROM_CONFIG_CHECK", CHECKSUM32, "Checksum over the configuration in the InfoROM", new="DEV_INFOROM_CHECKSUM", sem="inforom.checksum"),
    row(84, "DEV_INFOROM_CONFIG_VALID", FLAG, "Whether the InfoROM passed its checksum test: 1 valid, 0 corrupt", new="DEV_INFOROM_VALID", sem="inforom.valid"),
    row(85, "DEV_VBIOS_VERSION", TEXT, "Version of the video BIOS"),
    row(86, "DEV_MEM_AFFINITY_0", MASK64, "NUMA nodes 0 to 63 near the GPU, a bit each", new="DEV_MEMORY_AFFINITY_0", sem="numa.affinity{word=0}"),
    row(87, "DEV_MEM_AFFINITY_1", MASK64, "NUMA nodes 64 to 127 near the GPU, a bit each", new="DEV_MEMORY_AFFINITY_1", sem="numa.affinity{word=1}"),
    row(88, "DEV_MEM_AFFINITY_2", MASK64, "NUMA nodes 128 to 191 near the GPU, a bit each", new="DEV_MEMORY_AFFINITY_2", sem="numa.affinity{word=2}"),
    row(89, "DEV_MEM_AFFINITY_3", MASK64, "NUMA nodes 192 to 255 near the GPU, a bit each", new="DEV_MEMORY_AFFINITY_3", sem="numa.affinity{word=3}"),
    row(90, "DEV_BAR1_TOTAL", MEMORY, "Size of the BAR1 window, through which the bus maps GPU memory", base="DEV_BAR1_CAPACITY_BYTES", sem="bar1.limit", level=_CI),
    row(91, "SYNC_BOOST", BINARY, "Sync boost groups of this node, no longer maintained", new="SYSTEM_GPU_SYNC_BOOST"),
    row(92, "DEV_BAR1_USED", MEMORY, "BAR1 window in use", base="DEV_BAR1_USED_BYTES", sem="bar1.usage", level=_CI),
    row(93, "DEV_BAR1_FREE", MEMORY, "BAR1 window still free", base="DEV_BAR1_FREE_BYTES", sem="bar1.free", level=_CI),
    row(94, "DEV_GPM_SUPPORT", FLAG, "Whether the GPU can answer profiling questions through GPM: 1 yes, 0 no", sem="gpm.supported"),
)
# fmt: on
