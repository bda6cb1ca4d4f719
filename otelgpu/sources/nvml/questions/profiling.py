"""The metrics of GPU performance monitoring (GPM) that answer profiling fields.

Rule 1: NVML numbers the metrics of engines and links in steps; such a run is one line here.
"""

from collections.abc import Iterator

import pynvml

from otelgpu.sources.nvml.questions.rows import LINKS, GpmMetric

# The first metrics of what drivers learned in later releases: links between chips, caches, totals. An older driver may
# refuse a whole request for one metric that it does not know.
LATER = (
    pynvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC,
    pynvml.NVML_GPM_METRIC_HOSTMEM_CACHE_HIT,
    pynvml.NVML_GPM_METRIC_SM_CYCLES_ELAPSED,
)


def _engines() -> Iterator[GpmMetric]:
    runs = (
        (1017, pynvml.NVML_GPM_METRIC_NVDEC_0_UTIL, 8),
        (1025, pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL, 8),
        (1033, pynvml.NVML_GPM_METRIC_NVOFA_0_UTIL, 2),
    )
    for field_id, metric_id, many in runs:
        yield from (GpmMetric(field_id + place, metric_id + place, instance=False) for place in range(many))


def _links() -> Iterator[GpmMetric]:
    """DCGM counts what is sent first, NVML what is received."""
    received, sent = pynvml.NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC, pynvml.NVML_GPM_METRIC_NVLINK_L0_TX_PER_SEC
    for link in range(LINKS):
        yield GpmMetric(1040 + 2 * link, sent + 2 * link, instance=False)
        yield GpmMetric(1041 + 2 * link, received + 2 * link, instance=False)
        yield GpmMetric(1532, sent + 2 * link, instance=False, link=link)
        yield GpmMetric(1533, received + 2 * link, instance=False, link=link)


GPM_METRICS: tuple[GpmMetric, ...] = (
    GpmMetric(1001, pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL),
    GpmMetric(1002, pynvml.NVML_GPM_METRIC_SM_UTIL),
    GpmMetric(1003, pynvml.NVML_GPM_METRIC_SM_OCCUPANCY),
    GpmMetric(1004, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL),
    GpmMetric(1005, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL),
    GpmMetric(1006, pynvml.NVML_GPM_METRIC_FP64_UTIL),
    GpmMetric(1007, pynvml.NVML_GPM_METRIC_FP32_UTIL),
    GpmMetric(1008, pynvml.NVML_GPM_METRIC_FP16_UTIL),
    # The PCIe port and the links belong to the whole GPU: an instance has no share of its own.
    GpmMetric(1009, pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, instance=False),
    GpmMetric(1010, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, instance=False),
    GpmMetric(1011, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, instance=False),
    GpmMetric(1012, pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, instance=False),
    GpmMetric(1013, pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL),
    GpmMetric(1014, pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL),
    GpmMetric(1015, pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL),
    GpmMetric(1016, pynvml.NVML_GPM_METRIC_INTEGER_UTIL),
    *_engines(),
    *_links(),
    GpmMetric(1076, pynvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC, instance=False),
    GpmMetric(1077, pynvml.NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC, instance=False),
    GpmMetric(1078, pynvml.NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC, instance=False),
    GpmMetric(1079, pynvml.NVML_GPM_METRIC_C2C_DATA_RX_PER_SEC, instance=False),
    GpmMetric(1080, pynvml.NVML_GPM_METRIC_HOSTMEM_CACHE_HIT, instance=False),
    GpmMetric(1081, pynvml.NVML_GPM_METRIC_HOSTMEM_CACHE_MISS, instance=False),
    GpmMetric(1082, pynvml.NVML_GPM_METRIC_PEERMEM_CACHE_HIT, instance=False),
    GpmMetric(1083, pynvml.NVML_GPM_METRIC_PEERMEM_CACHE_MISS, instance=False),
    GpmMetric(1084, pynvml.NVML_GPM_METRIC_SM_CYCLES_ELAPSED, instance=False),
    GpmMetric(1085, pynvml.NVML_GPM_METRIC_SM_CYCLES_ACTIVE, instance=False),
    GpmMetric(1086, pynvml.NVML_GPM_METRIC_MMA_CYCLES_ACTIVE, instance=False),
    GpmMetric(1087, pynvml.NVML_GPM_METRIC_DMMA_CYCLES_ACTIVE, instance=False),
    GpmMetric(1088, pynvml.NVML_GPM_METRIC_HMMA_CYCLES_ACTIVE, instance=False),
    GpmMetric(1089, pynvml.NVML_GPM_METRIC_IMMA_CYCLES_ACTIVE, instance=False),
    GpmMetric(1090, pynvml.NVML_GPM_METRIC_DFMA_CYCLES_ACTIVE, instance=False),
    GpmMetric(1091, pynvml.NVML_GPM_METRIC_PCIE_TX, instance=False),
    GpmMetric(1092, pynvml.NVML_GPM_METRIC_PCIE_RX, instance=False),
    GpmMetric(1093, pynvml.NVML_GPM_METRIC_INTEGER_CYCLES_ACTIVE, instance=False),
    GpmMetric(1094, pynvml.NVML_GPM_METRIC_FP64_CYCLES_ACTIVE, instance=False),
    GpmMetric(1095, pynvml.NVML_GPM_METRIC_FP32_CYCLES_ACTIVE, instance=False),
    GpmMetric(1096, pynvml.NVML_GPM_METRIC_FP16_CYCLES_ACTIVE, instance=False),
)
