"""The CSV files that come with otelgpu, under the names of dcgm-exporter's: `python -m otelgpu.config.shipping FOLDER`.

Charts and operators name these files by their place in dcgm-exporter's image, /etc/dcgm-exporter. An image that has
nothing there still finds them (files.py): they lie in the package too, in otelgpu/data.

Rule 1: which fields a file names, which of them are on and their order are dcgm-exporter's (4.8.2); each stands once.
Rule 2: type and help are the catalogue's, but for the types that dcgm-exporter's own file gives otherwise.
Rule 3: a field that the catalogue does not know is left out, so that every row can be switched on.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from otelgpu.fields import find

# Titles, and below each the fields without their prefix; `#` before a field: off.
_COMMON = """
Clocks
DEV_SM_CLOCK DEV_MEM_CLOCK
Temperature
DEV_MEMORY_TEMP DEV_GPU_TEMP
Power
DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION
PCIe
DEV_PCIE_REPLAY_COUNTER
Load of the engines
DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_ENC_UTIL DEV_DEC_UTIL
Errors and events
DEV_XID_ERRORS
Time with reduced clocks, by what held them down
#DEV_POWER_VIOLATION #DEV_THERMAL_VIOLATION #DEV_SYNC_BOOST_VIOLATION #DEV_BOARD_LIMIT_VIOLATION
#DEV_LOW_UTIL_VIOLATION #DEV_RELIABILITY_VIOLATION
{more}
Memory
DEV_FB_FREE DEV_FB_USED DEV_FB_RESERVED
Memory errors (ECC)
#DEV_ECC_SBE_VOL_TOTAL #DEV_ECC_DBE_VOL_TOTAL #DEV_ECC_SBE_AGG_TOTAL #DEV_ECC_DBE_AGG_TOTAL
Retired pages
#DEV_RETIRED_SBE #DEV_RETIRED_DBE #DEV_RETIRED_PENDING
NVLink
#DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL #DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL #DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
#DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL DEV_NVLINK_BANDWIDTH_TOTAL #DEV_NVLINK_BANDWIDTH_L0
vGPU licence
DEV_VGPU_LICENSE_STATUS
Remapped rows
DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_FAILURE
Labels of every series
DRIVER_VERSION #NVML_VERSION #DEV_BRAND #DEV_SERIAL #DEV_OEM_INFOROM_VER #DEV_ECC_INFOROM_VER #DEV_POWER_INFOROM_VER
#DEV_INFOROM_IMAGE_VER #DEV_VBIOS_VERSION
Profiling
PROF_GR_ENGINE_ACTIVE #PROF_SM_ACTIVE #PROF_SM_OCCUPANCY PROF_PIPE_TENSOR_ACTIVE PROF_DRAM_ACTIVE
#PROF_PIPE_FP64_ACTIVE #PROF_PIPE_FP32_ACTIVE #PROF_PIPE_FP16_ACTIVE PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES
"""
_OWN = """Made by the exporter itself
#EXP_CLOCK_EVENTS_COUNT #EXP_XID_ERRORS_COUNT #EXP_GPU_HEALTH_STATUS #EXP_P2P_STATUS"""
_FIRST = """
Clocks
sm_clock memory_clock
Temperature
memory_temp gpu_temp
Power
power_usage total_energy_consumption
PCIe
fi_prof_pcie_tx_bytes fi_prof_pcie_rx_bytes pcie_replay_counter
Load of the engines
gpu_utilization mem_copy_utilization enc_utilization dec_utilization
Errors and events
xid_errors
Time with reduced clocks, by what held them down
#power_violation #thermal_violation #sync_boost_violation #board_limit_violation #low_util_violation
#reliability_violation
Memory
fb_free fb_used
Memory errors (ECC)
#ecc_sbe_volatile_total #ecc_dbe_volatile_total #ecc_sbe_aggregate_total #ecc_dbe_aggregate_total
Retired pages
#retired_pages_sbe #retired_pages_dbe #retired_pages_pending
NVLink
#nvlink_flit_crc_error_count_total #nvlink_data_crc_error_count_total #nvlink_replay_error_count_total
#nvlink_recovery_error_count_total nvlink_bandwidth_total
Profiling
fi_prof_gr_engine_active #fi_prof_sm_active #fi_prof_sm_occupancy fi_prof_pipe_tensor_active fi_prof_dram_active
"""
_EXPORTERS_OWN = ("CLOCK_EVENTS_COUNT", "XID_ERRORS_COUNT", "GPU_HEALTH_STATUS", "P2P_STATUS")
_KINDS = dict.fromkeys(
    ("dcgm_fi_prof_pcie_tx_bytes", "dcgm_fi_prof_pcie_rx_bytes", *(f"DCGM_EXP_{name}" for name in _EXPORTERS_OWN)),
    "counter",
)
_HEAD = """\
# Fields of dcgm-exporter {what}, for `otelgpu --fields FILE` or `dcgm-exporter -f FILE`.
# A row is NAME, TYPE, HELP. Take the # away in front of a row to switch it on. See `otelgpu check FILE`.
"""
_FILES: Mapping[str, tuple[str, str, str]] = {
    "default-counters.csv": ("4.8", "DCGM_FI_", _COMMON.format(more=_OWN)),
    "dcp-metrics-included.csv": ("4.8, its older name", "DCGM_FI_", _COMMON.format(more="")),
    "1.x-compatibility-metrics.csv": ("1.x, under their names of then", "dcgm_", _FIRST),
}


def shipped_files() -> dict[str, str]:
    """Write every file, by its name."""
    return {
        name: _HEAD.format(what=what) + "".join(_lines(prefix, table)) for name, (what, prefix, table) in _FILES.items()
    }


def _lines(prefix: str, table: str) -> Iterator[str]:
    title = ""
    for line in table.strip().splitlines():
        if line and not _is_row(line):
            title = line
        for word in line.split() if _is_row(line) else ():
            off, short = word.startswith("#"), word.removeprefix("#")
            name = f"DCGM_{short}" if short.startswith("EXP_") else prefix + short
            if (field := find(name)) is None:
                continue
            if title:
                yield f"\n# {title}\n"
                title = ""
            help_ = f'"{field.help}"' if "," in field.help else field.help
            yield f"{'# ' if off else ''}{name}, {_KINDS.get(name, field.kind.value)}, {help_}\n"


def _is_row(line: str) -> bool:
    return all("_" in word for word in line.split())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for file, text in shipped_files().items():
        (folder / file).write_text(text, encoding="utf-8")
