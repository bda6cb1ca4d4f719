"""Profiling fields, which DCGM's profiling module or NVML's GPM answer (ids 1001 to 1096 and 1532, 1533)."""

from otelgpu.fields.maker import row
from otelgpu.fields.measures import (
    ACTIVITY,
    BYTES_TOTAL,
    C2C_RATE,
    CACHE_SHARE,
    CYCLES,
    LINK_GPM_RATE,
    NVLINK_GPM_RATE,
    PCIE_RATE,
)
from otelgpu.fields.row import Field, Level

_CI = Level.GPU_CI
_TX = "network.io.direction=transmit"
_RX = "network.io.direction=receive"

# fmt: off
_ACTIVITY = (
    row(1001, "PROF_GR_ENGINE_ACTIVE", ACTIVITY, "Share of time the graphics or compute engine was busy", new="PROF_GR_ENGINE_UTIL_RATIO", sem="gr_engine.activity", level=_CI, default=True),
    row(1002, "PROF_SM_ACTIVE", ACTIVITY, "Share of time a multiprocessor had at least one warp, averaged over all", new="PROF_SM_UTIL_RATIO", sem="sm.activity", level=_CI),
    row(1003, "PROF_SM_OCCUPANCY", ACTIVITY, "Resident warps as a share of the most that fit", new="PROF_SM_OCCUPANCY_RATIO", sem="sm.occupancy", level=_CI),
    row(1004, "PROF_PIPE_TENSOR_ACTIVE", ACTIVITY, "Share of cycles the tensor cores were busy", new="PROF_TENSOR_UTIL_RATIO", sem="tensor.activity", level=_CI, default=True),
    row(1005, "PROF_DRAM_ACTIVE", ACTIVITY, "Share of cycles GPU memory was moving data", new="PROF_DRAM_UTIL_RATIO", sem="dram.activity", level=Level.GPU_I, default=True),
    row(1006, "PROF_PIPE_FP64_ACTIVE", ACTIVITY, "Share of cycles the double precision pipe was busy", new="PROF_FP64_UTIL_RATIO", sem="pipe.activity{pipe=fp64}", level=_CI),
    row(1007, "PROF_PIPE_FP32_ACTIVE", ACTIVITY, "Share of cycles the single precision pipe was busy", new="PROF_FP32_UTIL_RATIO", sem="pipe.activity{pipe=fp32}", level=_CI),
    row(1008, "PROF_PIPE_FP16_ACTIVE", ACTIVITY, "Share of cycles the half precision pipe was busy, tensor cores not counted", new="PROF_FP16_UTIL_RATIO", sem="pipe.activity{pipe=fp16}", level=_CI),
    row(1013, "PROF_PIPE_TENSOR_IMMA_ACTIVE", ACTIVITY, "Share of cycles the tensor cores did integer work", new="PROF_IMMA_UTIL_RATIO", sem="tensor.pipe.activity{pipe=imma}", level=_CI),
    row(1014, "PROF_PIPE_TENSOR_HMMA_ACTIVE", ACTIVITY, "Share of cycles the tensor cores did half precision work", new="PROF_HMMA_UTIL_RATIO", sem="tensor.pipe.activity{pipe=hmma}", level=_CI),
    row(1015, "PROF_PIPE_TENSOR_DFMA_ACTIVE", ACTIVITY, "Share of cycles the tensor cores did double precision work", new="PROF_DFMA_UTIL_RATIO", sem="tensor.pipe.activity{pipe=dfma}", level=_CI),
    row(1016, "PROF_PIPE_INT_ACTIVE", ACTIVITY, "Share of cycles the integer pipe was busy", new="PROF_INT_UTIL_RATIO", sem="pipe.activity{pipe=int}", level=_CI),
)
_RATES = (
    row(1009, "PROF_PCIE_TX_BYTES", PCIE_RATE, "PCIe traffic from the GPU, headers and data", sem=f"pcie.io.rate{{{_TX}}}", default=True),
    row(1010, "PROF_PCIE_RX_BYTES", PCIE_RATE, "PCIe traffic to the GPU, headers and data", sem=f"pcie.io.rate{{{_RX}}}", default=True),
    row(1011, "PROF_NVLINK_TX_BYTES", NVLINK_GPM_RATE, "NVLink traffic from the GPU over all links, as profiled", sem=f"profiling.nvlink.io.rate{{{_TX}}}"),
    row(1012, "PROF_NVLINK_RX_BYTES", NVLINK_GPM_RATE, "NVLink traffic to the GPU over all links, as profiled", sem=f"profiling.nvlink.io.rate{{{_RX}}}"),
    row(1076, "PROF_C2C_TX_ALL_BYTES", C2C_RATE, "Chip-to-chip traffic from the GPU, headers and data", sem=f"c2c.io.rate{{{_TX}}}"),
    row(1077, "PROF_C2C_TX_DATA_BYTES", C2C_RATE, "Chip-to-chip traffic from the GPU, data only", sem=f"c2c.data.io.rate{{{_TX}}}"),
    row(1078, "PROF_C2C_RX_ALL_BYTES", C2C_RATE, "Chip-to-chip traffic to the GPU, headers and data", sem=f"c2c.io.rate{{{_RX}}}"),
    row(1079, "PROF_C2C_RX_DATA_BYTES", C2C_RATE, "Chip-to-chip traffic to the GPU, data only", sem=f"c2c.data.io.rate{{{_RX}}}"),
)
_CACHES = (
    row(1080, "PROF_HOSTMEM_CACHE_HIT", CACHE_SHARE, "Lookups of host memory that the GPU's cache answered", sem="cache.lookups{memory=host,result=hit}"),
    row(1081, "PROF_HOSTMEM_CACHE_MISS", CACHE_SHARE, "Lookups of host memory that missed the GPU's cache", sem="cache.lookups{memory=host,result=miss}"),
    row(1082, "PROF_PEERMEM_CACHE_HIT", CACHE_SHARE, "Lookups of another GPU's memory that the cache answered", sem="cache.lookups{memory=peer,result=hit}"),
    row(1083, "PROF_PEERMEM_CACHE_MISS", CACHE_SHARE, "Lookups of another GPU's memory that missed the cache", sem="cache.lookups{memory=peer,result=miss}"),
)
_TOTALS = (
    row(1084, "PROF_SM_CYCLES_ELAPSED_TOTAL", CYCLES, "Cycles that passed, summed over all multiprocessors", sem="sm.cycles.elapsed"),
    row(1085, "PROF_SM_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which a multiprocessor had a warp, summed over all", sem="sm.cycles.active"),
    row(1086, "PROF_MMA_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which tensor cores were busy", sem="tensor.cycles.active"),
    row(1087, "PROF_DMMA_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which tensor cores did double precision matrix work", sem="tensor.pipe.cycles.active{pipe=dmma}"),
    row(1088, "PROF_HMMA_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which tensor cores did half precision matrix work", sem="tensor.pipe.cycles.active{pipe=hmma}"),
    row(1089, "PROF_IMMA_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which tensor cores did integer matrix work", sem="tensor.pipe.cycles.active{pipe=imma}"),
    row(1090, "PROF_DFMA_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which tensor cores did double precision multiply-adds", sem="tensor.pipe.cycles.active{pipe=dfma}"),
    row(1091, "PROF_PCIE_TX_BYTES_TOTAL", BYTES_TOTAL, "Bytes sent over PCIe by the GPU", sem=f"hw.gpu.io{{{_TX}}}"),
    row(1092, "PROF_PCIE_RX_BYTES_TOTAL", BYTES_TOTAL, "Bytes received over PCIe by the GPU", sem=f"hw.gpu.io{{{_RX}}}"),
    row(1093, "PROF_INT_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which the integer pipe was busy", sem="pipe.cycles.active{pipe=int}"),
    row(1094, "PROF_FP64_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which the double precision pipe was busy", sem="pipe.cycles.active{pipe=fp64}"),
    row(1095, "PROF_FP32_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which the single precision pipe was busy", sem="pipe.cycles.active{pipe=fp32}"),
    row(1096, "PROF_FP16_CYCLES_ACTIVE_TOTAL", CYCLES, "Cycles in which the half precision pipe was busy", sem="pipe.cycles.active{pipe=fp16}"),
)
_PER_LINK = (
    row(1532, "PROF_NVLINK_TX_BYTES_PER_LINK", LINK_GPM_RATE, "Traffic sent on one NVLink, as profiled", sem=f"profiling.link.io.rate{{{_TX}}}", level=Level.LINK),
    row(1533, "PROF_NVLINK_RX_BYTES_PER_LINK", LINK_GPM_RATE, "Traffic received on one NVLink, as profiled", sem=f"profiling.link.io.rate{{{_RX}}}", level=Level.LINK),
)


def _engines() -> tuple[Field, ...]:
    """Video and image engines; how many of them there are differs between GPUs."""
    engines = (
        (1017, "NVDEC", 8, "video decoder"),
        (1025, "NVJPG", 8, "JPEG decoder"),
        (1033, "NVOFA", 2, "optical flow engine"),
    )
    return tuple(
        row(
            first + i,
            f"PROF_{engine}{i}_ACTIVE",
            ACTIVITY,
            f"Share of time {words} {i} was busy",
            new=f"PROF_{engine}_UTIL_{i}_RATIO",
            sem=f"engine.activity{{engine={engine.lower()}{i}}}",
        )
        for first, engine, many, words in engines
        for i in range(many)
    )


def _links() -> tuple[Field, ...]:
    return tuple(
        row(
            1040 + 2 * link + offset,
            f"PROF_NVLINK_L{link}_{way}_BYTES",
            LINK_GPM_RATE,
            f"NVLink traffic {words} the GPU on link {link}, as profiled",
            sem=f"profiling.nvlink.link.io.rate{{link={link},{direction}}}",
        )
        for link in range(18)
        for offset, way, words, direction in ((0, "TX", "from", _TX), (1, "RX", "to", _RX))
    )


ROWS = (*_ACTIVITY, *_RATES, *_engines(), *_links(), *_CACHES, *_TOTALS, *_PER_LINK)
# fmt: on
