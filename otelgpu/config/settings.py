"""The settings of otelgpu: what can be set, within which limits, and what holds when nothing is said.

Rule 1: one setting is one field here. Its key in the file, its OTELGPU_ variable, its flag, its checks and its row in
        the README follow from the field; nothing else has to be written to add one.
Rule 2: a float is a duration in seconds.
Rule 3: nothing is read here, and nothing is decided that takes more than one setting; that is load.py.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from otelgpu.config.values import (
    Address,
    Pick,
    SourceChoice,
    parse_address,
    parse_field_name,
    parse_pick,
    parse_source,
)


def _about(meaning: str, *, flag: str = "", word: str = "", parse: Callable[[str], object] | None = None) -> Meta:
    """Describe a setting: what it means (Markdown), a short flag where people type it, how one value is read.

    `word` stands for the value in the help of the flag. `parse` is for values that are more than a number or a word.
    """
    return Meta(description=meaning, extra={"flag": flag, "word": word, "parse": parse})


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and for how many the pages are served."""

    listen: Annotated[
        tuple[Address, ...],
        _about(
            "Addresses to serve on: `:9400`, `127.0.0.1:0` (any free port), `[::1]:9400`, `unix:/path`.",
            flag="--listen",
            word="ADDRESS",
            parse=parse_address,
        ),
    ] = (Address(port=9400),)
    max_requests: Annotated[
        int,
        Meta(ge=1, le=10000),
        _about("More requests than this at the same time are answered with 503."),
    ] = 40


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the driver is asked."""

    reuse: Annotated[
        float,
        Meta(ge=0, le=60),
        _about("A reader accepts readings this old instead of asking the driver again.", flag="--reuse"),
    ] = 1.0
    deadline: Annotated[
        float,
        Meta(gt=0, le=60),
        _about("Nobody waits longer than this for the driver.", flag="--deadline"),
    ] = 2.0
    interval: Annotated[
        Annotated[float, Meta(ge=0.1, le=300)] | None,
        _about("Ask the driver at this pace; `null`: only when somebody looks.", flag="--interval"),
    ] = None
    expire: Annotated[
        Annotated[float, Meta(gt=0, le=3600)] | None,
        _about(
            "A reading older than this is no longer shown; `null`: the larger of 10 s and three intervals.",
            flag="--expire",
        ),
    ] = None

    @property
    def expire_after(self) -> float:
        """The age at which a reading is no longer shown, with the default worked out."""
        return self.expire if self.expire is not None else max(10.0, 3 * (self.interval or 0.0))


class Mig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How MIG instances are shown."""

    parent_values: Annotated[
        Literal["once", "repeat"],
        _about("Values that only the whole GPU has: `once` on the GPU, or `repeat` on each of its MIG instances."),
    ] = "once"


class Simulated(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated node."""

    seed: Annotated[
        int,
        Meta(ge=0, le=2**63 - 1),
        _about("The simulated node behaves the same for the same number."),
    ] = 0


class Embed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """otelgpu inside another process; `otelgpu serve` has no use for these."""

    only_visible: Annotated[
        bool,
        _about("Only the GPUs and MIG instances of `CUDA_VISIBLE_DEVICES`, else of `NVIDIA_VISIBLE_DEVICES`."),
    ] = False
    only_process: Annotated[
        bool,
        _about("Only what this process and its children use of each GPU: memory and multiprocessors."),
    ] = False
    once: Annotated[
        bool | None,
        _about("One process of a user on this host reports for all; `null`: under `opentelemetry-instrument` only."),
    ] = None


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged on stderr, and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _about("The least important messages that are logged: `debug`, `info`, `warning` or `error`."),
    ] = "info"
    format: Annotated[Literal["text", "json"], _about("Log lines as `text` or `json`.")] = "text"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read, and how it is named.

    And all other settings, in their sections, and where each came from. `Config()` holds the defaults.
    """

    source: Annotated[
        SourceChoice,
        _about(
            "Who is asked: `nvml` (the driver), `auto` (NVML, waiting for the driver where it is not there yet) "
            "or `simulated:SPEC` (`8xh100`, `4xt4+4xl40s`).",
            word="SOURCE",
            parse=parse_source,
        ),
    ] = SourceChoice("auto")
    fields: Annotated[
        tuple[str, ...],
        _about(
            "Fields to read: names, and the words `default`, `all` and `none`.", word="NAMES", parse=parse_field_name
        ),
    ] = ("default",)
    devices: Annotated[
        tuple[Pick, ...],
        _about("GPUs to read: `all`, indexes (`0`, `2-5`), UUIDs or PCI bus ids.", word="DEVICES", parse=parse_pick),
    ] = (Pick.all(),)
    naming: Annotated[
        Literal["dcgm", "semconv"],
        _about("Names on the page: `dcgm` as dcgm-exporter, or `semconv` of OpenTelemetry."),
    ] = "dcgm"
    compat: Annotated[
        Literal["4.8.2", "4.8.3", "4.9"],
        _about("The dcgm-exporter whose names are kept: `4.8.2`, `4.8.3` (label `hostname`) or `4.9`."),
    ] = "4.8.2"
    hostname: Annotated[
        str,
        _about(
            "The host name label; empty: `NODE_NAME`, else the machine's own name; `none`: no such label.",
            word="NAME",
        ),
    ] = ""
    labels: Annotated[
        Mapping[str, str],
        _about("More labels for every series, `NAME=VALUE`.", flag="--label", word="NAME=VALUE"),
    ] = field(default_factory=dict)
    server: Server = Server()
    sampling: Sampling = Sampling()
    mig: Mig = Mig()
    simulated: Simulated = Simulated()
    embed: Embed = Embed()
    log: Log = Log()

    # No setting (it has no meaning for the user): the places that values came from, for later messages. A key, or
    # KEY[1] for an entry of a list, to "otelgpu.yaml:7", "OTELGPU_SAMPLING_REUSE", "--reuse" or "default".
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str, entry: int | None = None) -> str:
        """Say where a value came from: its file and line, its variable, its flag, or "default"."""
        whole = self.origins.get(key, "default")
        return whole if entry is None else self.origins.get(f"{key}[{entry}]", whole)
