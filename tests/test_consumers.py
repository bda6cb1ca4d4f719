"""What reads dcgm-exporter's page elsewhere, and whether it finds on ours what it looks for.

Rule 1: a consumer is a row here: the fields it reads, as its CSV file or code names them, and the labels it uses.
Rule 2: what NVML cannot give is a row of NOT_GIVEN with the reason; one that is given by now fails the test.
Rule 3: the GPU of these tests answers all that NVML can be asked, so what is absent is absent everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from otelgpu.config import Flag, Kubernetes, load
from tests.fakekubelet import Kubelet, pod
from tests.fakenvml import models
from tests.fakenvml.everything import everything
from tests.harness import LIMIT, Node, lines_of
from tests.test_kubernetes import kubelet

__all__ = ["kubelet"]  # the fixture

Start = Callable[..., Node]


@dataclass(frozen=True, slots=True)
class Consumer:
    """Names are written without `DCGM_FI_`; `texts` are rows of type label, `labels` those that every page has."""

    fields: str
    texts: str = ""
    labels: str = "gpu UUID"


# Datadog's dcgm check: its map of metrics, and what it renames of the labels.
DATADOG = Consumer(
    """
    DEV_DEC_UTIL DEV_ENC_UTIL DEV_FB_FREE DEV_FB_USED DEV_FB_TOTAL DEV_FB_RESERVED DEV_FB_USED_PERCENT DEV_GPU_TEMP
    DEV_GPU_UTIL DEV_NVLINK_BANDWIDTH_TOTAL DEV_PCIE_REPLAY_COUNTER DEV_POWER_USAGE DEV_POWER_MGMT_LIMIT DEV_SM_CLOCK
    DEV_MEM_CLOCK DEV_TOTAL_ENERGY_CONSUMPTION DEV_VGPU_LICENSE_STATUS DEV_XID_ERRORS DEV_MEM_COPY_UTIL DEV_MEMORY_TEMP
    DEV_COUNT DEV_FAN_SPEED DEV_CORRECTABLE_REMAPPED_ROWS DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_FAILURE
    DEV_CLOCK_THROTTLE_REASONS DEV_PSTATE DEV_SLOWDOWN_TEMP PROF_DRAM_ACTIVE PROF_GR_ENGINE_ACTIVE
    PROF_PIPE_TENSOR_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP64_ACTIVE PROF_SM_ACTIVE
    PROF_SM_OCCUPANCY PROF_PCIE_RX_BYTES PROF_PCIE_TX_BYTES
    """,
    labels="gpu UUID device modelName namespace pod container",
)

# netdata's dcgm collector: the fields that its CSV file switches on.
NETDATA = Consumer(
    """
    DEV_APP_MEM_CLOCK DEV_APP_SM_CLOCK DEV_BAR1_FREE DEV_BAR1_TOTAL DEV_BAR1_USED DEV_CLOCKS_EVENT_REASONS
    DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS
    DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS DEV_COMPUTE_MODE
    DEV_CORRECTABLE_REMAPPED_ROWS DEV_COUNT DEV_DEC_UTIL DEV_ECC_CURRENT DEV_ECC_DBE_AGG_L2 DEV_ECC_DBE_AGG_TOTAL
    DEV_ECC_DBE_VOL_DEV DEV_ECC_DBE_VOL_L2 DEV_ECC_DBE_VOL_TOTAL DEV_ECC_PENDING DEV_ECC_SBE_AGG_L2
    DEV_ECC_SBE_AGG_TOTAL DEV_ECC_SBE_VOL_DEV DEV_ECC_SBE_VOL_L2 DEV_ECC_SBE_VOL_TOTAL DEV_ENC_UTIL
    DEV_ENFORCED_POWER_LIMIT DEV_FABRIC_MANAGER_ERROR_CODE DEV_FABRIC_MANAGER_STATUS DEV_FAN_SPEED DEV_FB_FREE
    DEV_FB_RESERVED DEV_FB_TOTAL DEV_FB_USED DEV_FB_USED_PERCENT DEV_GPU_MAX_OP_TEMP DEV_GPU_NVLINK_ERRORS DEV_GPU_TEMP
    DEV_GPU_TEMP_LIMIT DEV_GPU_UTIL DEV_MAX_MEM_CLOCK DEV_MAX_SM_CLOCK DEV_MAX_VIDEO_CLOCK DEV_MEMORY_TEMP DEV_MEM_CLOCK
    DEV_MEM_COPY_UTIL DEV_MEM_MAX_OP_TEMP DEV_MIG_MAX_SLICES DEV_MIG_MODE DEV_NVLINK_BANDWIDTH_TOTAL
    DEV_NVLINK_COUNT_RX_BYTES DEV_NVLINK_COUNT_TX_BYTES DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DEV_NVLINK_ERROR_DL_CRC DEV_NVLINK_ERROR_DL_RECOVERY
    DEV_NVLINK_ERROR_DL_REPLAY DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    DEV_NVSWITCH_FATAL_ERRORS
    DEV_NVSWITCH_LINK_FATAL_ERRORS DEV_NVSWITCH_LINK_NON_FATAL_ERRORS DEV_NVSWITCH_LINK_REPLAY_ERRORS
    DEV_NVSWITCH_LINK_THROUGHPUT_RX DEV_NVSWITCH_LINK_THROUGHPUT_TX DEV_NVSWITCH_NON_FATAL_ERRORS
    DEV_NVSWITCH_TEMPERATURE_CURRENT DEV_PCIE_LINK_GEN DEV_PCIE_LINK_WIDTH DEV_PCIE_REPLAY_COUNTER
    DEV_PCIE_RX_THROUGHPUT DEV_PCIE_TX_THROUGHPUT DEV_PERSISTENCE_MODE DEV_POWER_MGMT_LIMIT DEV_POWER_MGMT_LIMIT_DEF
    DEV_POWER_MGMT_LIMIT_MAX DEV_POWER_MGMT_LIMIT_MIN DEV_POWER_USAGE DEV_POWER_USAGE_INSTANT DEV_POWER_VIOLATION
    DEV_PSTATE DEV_RETIRED_DBE DEV_RETIRED_PENDING DEV_RETIRED_SBE DEV_ROW_REMAP_FAILURE DEV_ROW_REMAP_PENDING
    DEV_SHUTDOWN_TEMP DEV_SLOWDOWN_TEMP DEV_SM_CLOCK DEV_THERMAL_VIOLATION DEV_THRESHOLD_SRM
    DEV_TOTAL_ENERGY_CONSUMPTION DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_VGPU_LICENSE_STATUS DEV_VGPU_MEMORY_USAGE
    DEV_VGPU_UTILIZATIONS DEV_VIDEO_CLOCK DEV_VIRTUAL_MODE DEV_XID_ERRORS PROF_DRAM_ACTIVE PROF_GR_ENGINE_ACTIVE
    PROF_HOSTMEM_CACHE_HIT PROF_HOSTMEM_CACHE_MISS PROF_NVLINK_RX_BYTES PROF_NVLINK_TX_BYTES PROF_PCIE_RX_BYTES
    PROF_PCIE_TX_BYTES PROF_PEERMEM_CACHE_HIT PROF_PEERMEM_CACHE_MISS PROF_PIPE_FP16_ACTIVE PROF_PIPE_FP32_ACTIVE
    PROF_PIPE_FP64_ACTIVE PROF_PIPE_INT_ACTIVE PROF_PIPE_TENSOR_ACTIVE PROF_PIPE_TENSOR_DFMA_ACTIVE
    PROF_PIPE_TENSOR_HMMA_ACTIVE PROF_PIPE_TENSOR_IMMA_ACTIVE PROF_SM_ACTIVE PROF_SM_OCCUPANCY
    """,
    texts="CUDA_DRIVER_VERSION DEV_BRAND DEV_SERIAL DRIVER_VERSION",
    labels="gpu UUID device modelName GPU_I_ID GPU_I_PROFILE err_code err_msg",
)

# l9gpu's dcgm_monitor.
L9GPU = Consumer(
    """
    PROF_SM_ACTIVE PROF_DRAM_ACTIVE PROF_GR_ENGINE_ACTIVE PROF_PIPE_TENSOR_ACTIVE PROF_PIPE_FP64_ACTIVE
    PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_SM_OCCUPANCY PROF_NVLINK_TX_BYTES PROF_NVLINK_RX_BYTES
    PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES
    """,
    labels="gpu UUID modelName GPU_I_ID",
)

# AWS Container Insights, which keeps what its metrics of containers, pods and nodes are made of.
CONTAINER_INSIGHTS = Consumer(
    "DEV_GPU_UTIL DEV_FB_USED_PERCENT DEV_FB_USED DEV_FB_TOTAL DEV_GPU_TEMP DEV_POWER_USAGE PROF_PIPE_TENSOR_ACTIVE",
    labels="UUID Hostname namespace pod container device",
)

# Grafana's dashboard 12239, which dcgm-exporter ships.
DASHBOARD = Consumer(
    "DEV_GPU_TEMP DEV_POWER_USAGE DEV_SM_CLOCK PROF_GR_ENGINE_ACTIVE PROF_PIPE_TENSOR_ACTIVE DEV_FB_USED DEV_FB_FREE",
    labels="Hostname gpu UUID GPU_I_ID GPU_I_PROFILE",
)

CONSUMERS = {
    "Datadog": DATADOG,
    "netdata": NETDATA,
    "l9gpu": L9GPU,
    "AWS Container Insights": CONTAINER_INSIGHTS,
    "Grafana 12239": DASHBOARD,
}

SWITCH = "NVSwitches are asked through a library of their own (NSCQ, NVSDM), which only DCGM loads"
VGPU = "of a host that cuts its GPUs into vGPUs: DCGM asks for each vGPU, and this host's are not read"
NOT_GIVEN = {
    "DEV_GPU_NVLINK_ERRORS": "DCGM's own code for what it saw on the links; NVML has the counters, which are shown",
    "DEV_NVSWITCH_FATAL_ERRORS": SWITCH,
    "DEV_NVSWITCH_LINK_FATAL_ERRORS": SWITCH,
    "DEV_NVSWITCH_LINK_NON_FATAL_ERRORS": SWITCH,
    "DEV_NVSWITCH_LINK_REPLAY_ERRORS": SWITCH,
    "DEV_NVSWITCH_LINK_THROUGHPUT_RX": SWITCH,
    "DEV_NVSWITCH_LINK_THROUGHPUT_TX": SWITCH,
    "DEV_NVSWITCH_NON_FATAL_ERRORS": SWITCH,
    "DEV_NVSWITCH_TEMPERATURE_CURRENT": SWITCH,
    "DEV_VGPU_MEMORY_USAGE": VGPU,
    "DEV_VGPU_UTILIZATIONS": VGPU,
}


def shown(consumer: Consumer, node: Start, folder: Path) -> set[str]:
    """The names of the families, and of the rows of type label, that stand on our page for a consumer's CSV file."""
    rows = [f"DCGM_FI_{name}, gauge, x" for name in consumer.fields.split()]
    rows += [f"DCGM_FI_{name}, label, x" for name in consumer.texts.split()]
    (folder / "consumer.csv").write_text("\n".join(rows))
    loaded = load(environ={}, flags=[Flag("--fields", "fields", str(folder / "consumer.csv"))])
    lines = lines_of(node(everything(), fields=loaded.fields, counters=loaded.counters).settled_page())
    return {name for line in lines for name in (line.name, *line.labels) if name.startswith("DCGM_")}


@pytest.mark.parametrize("name", CONSUMERS)
def test_each_field_of_a_consumer_is_on_the_page(name: str, node: Start, tmp_path: Path) -> None:
    """Whoever changes the exporter keeps his dashboards and alerts, and knows which few lose their ground."""
    consumer = CONSUMERS[name]
    wanted = {f"DCGM_FI_{field}" for field in f"{consumer.fields} {consumer.texts}".split()}

    assert wanted - shown(consumer, node, tmp_path) == wanted & {f"DCGM_FI_{field}" for field in NOT_GIVEN}


def test_what_is_not_given_is_wanted() -> None:
    """A reason for something that nobody reads excuses the next."""
    wanted = {field for consumer in CONSUMERS.values() for field in consumer.fields.split()}

    assert set(NOT_GIVEN) - wanted == set()
    assert len(NETDATA.fields.split()) + len(NETDATA.texts.split()) == 124
    assert len(DATADOG.fields.split()) == 38


def test_each_label_of_a_consumer_is_on_the_page(node: Start, kubelet: Kubelet) -> None:
    """Series are grouped by them: of a GPU, of its instances, and of the pods that hold these."""
    machine = models.h100_mig()
    held = next(one for gpu in machine.gpus for one in gpu.instances if one is not None)
    kubelet.pods = [pod("train-0", held.uuid, resource="nvidia.com/mig-1g.10gb")]
    kubelet.start()
    running = node(machine, kubernetes=Kubernetes(enabled=True, socket=str(kubelet.path)))
    assert running.pipeline.attribution.looked(LIMIT)
    labels = {name for line in lines_of(running.page()) if line.name.startswith("DCGM_") for name in line.labels}

    for name, consumer in CONSUMERS.items():
        assert set(consumer.labels.split()) - labels == set(), name
