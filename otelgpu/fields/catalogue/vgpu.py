"""Virtual GPUs and the platform a GPU sits in (ids 500 to 577)."""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import BINARY, MEMORY, STATE, TEXT, state
from otelgpu.fields.row import Level

_V = Level.VGPU

# fmt: off
ROWS = (
    row(500, "DEV_VIRTUAL_MODE", state(255), "How the GPU is virtualised: 0 not, 1 passed through, 2 seen from a guest, 3 and 4 from the host", new="DEV_GPU_VIRTUAL_MODE", sem="virtualization.mode"),
    row(501, "DEV_SUPPORTED_TYPE_INFO", BINARY, "vGPU types this GPU can host, in detail", new="DEV_VGPU_SUPPORTED_INFO", level=_V),
    row(502, "DEV_CREATABLE_VGPU_TYPE_IDS", BINARY, "vGPU types that still fit on the GPU", new="DEV_VGPU_CREATABLE_IDS", level=_V),
    row(503, "DEV_VGPU_INSTANCE_IDS", BINARY, "vGPUs that run on the GPU", new="DEV_VGPU_INSTANCE_INFO", level=_V),
    row(504, "DEV_VGPU_UTILIZATIONS", BINARY, "Load that each vGPU puts on the GPU", new="DEV_VGPU_UTIL_INFO", level=_V),
    row(505, "DEV_VGPU_PER_PROCESS_UTILIZATION", BINARY, "Load that each process in a vGPU puts on the GPU", new="DEV_VGPU_PROCESS_UTIL_INFO", level=_V),
    row(506, "DEV_ENC_STATS", BINARY, "Video encoder sessions, their frame rate and latency"),
    row(507, "DEV_FBC_STATS", BINARY, "Frame buffer capture sessions, their frame rate and latency"),
    row(508, "DEV_FBC_SESSIONS_INFO", BINARY, "Frame buffer capture sessions one by one"),
    row(509, "DEV_SUPPORTED_VGPU_TYPE_IDS", BINARY, "Ids of the vGPU types this GPU can host", new="DEV_VGPU_SUPPORTED_IDS", level=_V),
    row(510, "DEV_VGPU_TYPE_INFO", BINARY, "What a vGPU type offers", level=_V),
    row(511, "DEV_VGPU_TYPE_NAME", BINARY, "Names of the vGPU types", level=_V),
    row(512, "DEV_VGPU_TYPE_CLASS", BINARY, "Classes of the vGPU types", level=_V),
    row(513, "DEV_VGPU_TYPE_LICENSE", BINARY, "Licences that the vGPU types need", level=_V),
    row(520, "DEV_VGPU_VM_ID", TEXT, "Id of the virtual machine that has the vGPU", level=_V),
    row(521, "DEV_VGPU_VM_NAME", TEXT, "Name of the virtual machine that has the vGPU", level=_V),
    row(522, "DEV_VGPU_TYPE", STATE, "Type number of the vGPU", sem="vgpu.type", level=_V),
    row(523, "DEV_VGPU_UUID", TEXT, "UUID of the vGPU", level=_V),
    row(524, "DEV_VGPU_DRIVER_VERSION", TEXT, "Version of the driver inside the virtual machine", level=_V),
    row(525, "DEV_VGPU_MEMORY_USAGE", MEMORY, "Memory the vGPU uses", base="DEV_VGPU_FB_USED_BYTES", sem="vgpu.memory.usage", level=_V),
    row(526, "DEV_VGPU_LICENSE_STATUS", state(255), "Whether the vGPU has its licence: 1 yes, 0 no", sem="vgpu.license.state", level=_V, default=True),
    row(527, "DEV_VGPU_FRAME_RATE_LIMIT", state(10**6), "Frames a second that the vGPU may draw", sem="vgpu.frame_rate.limit", level=_V),
    row(528, "DEV_VGPU_ENC_STATS", BINARY, "Video encoder sessions of the vGPU", level=_V),
    row(529, "DEV_VGPU_ENC_SESSIONS_INFO", BINARY, "Video encoder sessions of the vGPU one by one", level=_V),
    row(530, "DEV_VGPU_FBC_STATS", BINARY, "Frame buffer capture sessions of the vGPU", level=_V),
    row(531, "DEV_VGPU_FBC_SESSIONS_INFO", BINARY, "Frame buffer capture sessions of the vGPU one by one", level=_V),
    row(532, "DEV_VGPU_INSTANCE_LICENSE_STATE", TEXT, "Licence state of the vGPU in words", new="DEV_VGPU_INSTANCE_LICENSE_STATUS", level=_V),
    row(533, "DEV_VGPU_PCI_ID", TEXT, "PCI address of the vGPU inside the virtual machine", level=_V),
    row(534, "DEV_VGPU_VM_GPU_INSTANCE_ID", STATE, "MIG GPU instance that carries the vGPU", new="DEV_VGPU_GPU_INSTANCE_ID", sem="vgpu.gpu_instance_id", level=_V),
    row(571, "DEV_PLATFORM_INFINIBAND_GUID", TEXT, "InfiniBand GUID by which the NVLink fabric knows the GPU"),
    row(572, "DEV_PLATFORM_CHASSIS_SERIAL_NUMBER", TEXT, "Serial number of the chassis"),
    row(573, "DEV_PLATFORM_CHASSIS_SLOT_NUMBER", state(254), "Slot of the chassis that holds the GPU's tray", sem="platform.slot"),
    row(574, "DEV_PLATFORM_TRAY_INDEX", state(254), "Index of the GPU's tray among the compute trays", sem="platform.tray"),
    row(575, "DEV_PLATFORM_HOST_ID", STATE, "Number of the host within its tray", sem="platform.host"),
    row(576, "DEV_PLATFORM_PEER_TYPE", STATE, "What the GPU's NVLinks lead to: another GPU or a switch", sem="platform.peer_type"),
    row(577, "DEV_PLATFORM_MODULE_ID", STATE, "Number of the GPU module within its host", sem="platform.module"),
)
# fmt: on
