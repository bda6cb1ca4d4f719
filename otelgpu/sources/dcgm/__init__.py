"""DCGM as a source: an engine (`nv-hostengine`, or one in this process) samples the GPUs, and libdcgm asks it."""

from otelgpu.sources.dcgm.source import DcgmSource as DcgmSource
