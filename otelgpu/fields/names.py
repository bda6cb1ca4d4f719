"""Find a field by what a person writes.

Rule 1: exact and case-sensitive, as dcgm-exporter is; `suggest` is there for the error message.
Rule 2: the index is built at the first question, not at import.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from otelgpu.fields.catalogue import CATALOGUE
from otelgpu.fields.row import Field

# Lower-case names of dcgm-exporter 1.x, which its 1.x CSV and old dashboards still use.
_NAMES_1X = {
    "dcgm_board_limit_violation": 243,
    "dcgm_dec_utilization": 207,
    "dcgm_ecc_dbe_aggregate_total": 313,
    "dcgm_ecc_dbe_volatile_total": 311,
    "dcgm_ecc_sbe_aggregate_total": 312,
    "dcgm_ecc_sbe_volatile_total": 310,
    "dcgm_enc_utilization": 206,
    "dcgm_fb_free": 251,
    "dcgm_fb_used": 252,
    "dcgm_fi_prof_dram_active": 1005,
    "dcgm_fi_prof_gr_engine_active": 1001,
    "dcgm_fi_prof_pcie_rx_bytes": 1010,
    "dcgm_fi_prof_pcie_tx_bytes": 1009,
    "dcgm_fi_prof_pipe_tensor_active": 1004,
    "dcgm_fi_prof_sm_active": 1002,
    "dcgm_fi_prof_sm_occupancy": 1003,
    "dcgm_gpu_temp": 150,
    "dcgm_gpu_utilization": 203,
    "dcgm_low_util_violation": 244,
    "dcgm_mem_copy_utilization": 204,
    "dcgm_memory_clock": 101,
    "dcgm_memory_temp": 140,
    "dcgm_nvlink_bandwidth_total": 449,
    "dcgm_nvlink_data_crc_error_count_total": 419,
    "dcgm_nvlink_flit_crc_error_count_total": 409,
    "dcgm_nvlink_recovery_error_count_total": 439,
    "dcgm_nvlink_replay_error_count_total": 429,
    "dcgm_pcie_replay_counter": 202,
    "dcgm_pcie_rx_throughput": 201,
    "dcgm_pcie_tx_throughput": 200,
    "dcgm_power_usage": 155,
    "dcgm_power_violation": 240,
    "dcgm_reliability_violation": 245,
    "dcgm_retired_pages_dbe": 391,
    "dcgm_retired_pages_pending": 392,
    "dcgm_retired_pages_sbe": 390,
    "dcgm_sm_clock": 100,
    "dcgm_sync_boost_violation": 242,
    "dcgm_thermal_violation": 241,
    "dcgm_total_energy_consumption": 156,
    "dcgm_xid_errors": 230,
}


@cache
def _index() -> Mapping[str, Field]:
    """Every spelling of every generation; no name ever meant two fields."""
    index = {name: CATALOGUE[ident] for name, ident in _NAMES_1X.items()}
    for field in CATALOGUE.values():
        for name in (field.name, field.new_name, field.dcgm49.name, *field.aliases):
            index[name] = field
    return MappingProxyType(index)


@cache
def _ids() -> frozenset[str]:
    return frozenset(str(ident) for ident in CATALOGUE)


def find(name: str) -> Field | None:
    """Give the field of this name (any generation) or decimal id, or None."""
    if name in _ids():
        return CATALOGUE[int(name)]
    return _index().get(name)


def suggest(name: str) -> str | None:
    """Give the known name closest to a wrong one, or None when nothing is near."""
    import difflib  # only for an error message

    index = _index()
    if name.upper() in index:
        return name.upper()
    near = difflib.get_close_matches(name, index, n=1, cutoff=0.75)
    return near[0] if near else None
