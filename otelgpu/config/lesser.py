"""The settings of DCGM, sleeping GPUs, MIG, the simulated node, embedding, the log. See settings.py for rules."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from otelgpu.config.about import about
from otelgpu.config.owning import parse_folder
from otelgpu.config.values import parse_engine


class Dcgm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """DCGM, where that is asked instead of the driver."""

    address: Annotated[
        str,
        about(
            "The host engine to ask: `HOST:PORT`, `HOST` (port 5555), `[IPV6]:PORT` or `unix:///PATH`; empty: with "
            "`source: dcgm` an engine in this process. With `source: auto` it means DCGM where libdcgm is there.",
            flag="--remote-hostengine-info",
            letter="-r",
            variable="DCGM_REMOTE_HOSTENGINE_INFO",
            word="ADDRESS",
            parse=parse_engine,
        ),
    ] = ""
    library: Annotated[
        str,
        about(
            "The libdcgm.so.4 (or .so.3) to load, or the folder that it is in; empty: where the loader finds it, and "
            "before that below `driver_root`.",
            word="PATH",
        ),
    ] = ""
    interval: Annotated[
        Annotated[float, Meta(ge=0.1, le=3600)] | None,
        about("The engine samples at this pace; `null`: at that of `sampling.interval`, else each second."),
    ] = None


class Suspended(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs that the kernel has suspended because nobody used them."""

    wake: Annotated[
        bool,
        about(
            "Ask a suspended GPU too, which wakes it; else nothing is asked of it, and its values are absent.",
            flag="--wake-suspended",
        ),
    ] = False
    sys_root: Annotated[
        str,
        about(
            "Where the host's /sys is mounted, which tells what is suspended.",
            flag="--sys-root",
            word="PATH",
            parse=parse_folder,
        ),
    ] = "/sys"


class Mig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How MIG instances are shown."""

    parent_values: Annotated[
        Literal["once", "repeat"],
        about("Values that only the whole GPU has: `once` on the GPU, or `repeat` on each of its MIG instances."),
    ] = "once"


class Simulated(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated node."""

    seed: Annotated[
        int,
        Meta(ge=0, le=2**63 - 1),
        about("The simulated node behaves the same for the same number."),
    ] = 0


class Embed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """otelgpu inside another process; `otelgpu serve` has no use for these."""

    only_visible: Annotated[
        bool,
        about("Only the GPUs and MIG instances of `CUDA_VISIBLE_DEVICES`, else of `NVIDIA_VISIBLE_DEVICES`."),
    ] = False
    only_process: Annotated[
        bool,
        about("Only what this process and its children use of each GPU: memory and multiprocessors."),
    ] = False
    once: Annotated[
        bool | None,
        about("One process of a user on this host reports for all; `null`: under `opentelemetry-instrument` only."),
    ] = None


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged on stderr, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("The least important messages that are logged: `debug`, `info`, `warning` or `error`."),
    ] = "info"
    format: Annotated[
        Literal["text", "json"], about("Log lines as `text` or `json`.", variable="DCGM_EXPORTER_LOG_FORMAT")
    ] = "text"
