"""The settings of otelgpu: what can be set, within which limits, and what holds when nothing is said.

Rule 1: one setting is one field here. Its key in the file, its OTELGPU_ variable, its flag, its checks and its row in
        the README follow from the field; nothing else has to be written to add one.
Rule 2: a float is a duration in seconds.
Rule 3: nothing is read here, and nothing is decided that takes more than one setting; that is load.py.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from otelgpu.config.about import about as _about
from otelgpu.config.counting import Counts
from otelgpu.config.lesser import Dcgm, Embed, Log, Mig, Simulated, Suspended
from otelgpu.config.listed import Counter, Remark
from otelgpu.config.owning import Jobs, Kubernetes, Limits, Processes, parse_root
from otelgpu.config.picks import Pick, parse_pick, split_devices
from otelgpu.config.serving import Server
from otelgpu.config.values import (
    SourceChoice,
    check_header_name,
    check_label_name,
    parse_endpoint,
    parse_field_name,
    parse_source,
)

TLS_FILES = ("certificate", "client_certificate", "client_key")  # of Otlp


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
        Annotated[float, Meta(ge=0.1, le=3600)] | None,
        _about("Ask the driver at this pace; `null`: only when somebody looks.", flag="--interval"),
    ] = None
    expire: Annotated[
        Annotated[float, Meta(gt=0, le=3600)] | None,
        _about(
            "A reading older than this is no longer shown; `null`: the larger of 10 s and three intervals.",
            flag="--expire",
        ),
    ] = None
    slow_interval: Annotated[
        float,
        Meta(ge=0, le=86400),
        _about("Ask at most this often about what seldom changes: limits, modes, retired memory; 0: in each sweep."),
    ] = 60.0
    isolate: Annotated[
        bool,
        _about("Ask the driver in a process of its own: a crash inside its library costs that one.", flag="--isolate"),
    ] = False

    @property
    def expire_after(self) -> float:
        """The age at which a reading is no longer shown, with the default worked out."""
        return self.expire if self.expire is not None else max(10.0, 3 * (self.interval or 0.0))


class Otlp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where metrics are pushed to, over OTLP. The variables OTEL_* fill in what is not set here."""

    endpoint: Annotated[
        str,
        _about(
            "Push to this collector: `http://HOST:4318`, or `http://HOST:4317` for gRPC (`https` with TLS); "
            "empty: do not push.",
            flag="--otlp",
            word="URL",
            parse=parse_endpoint,
        ),
    ] = ""
    protocol: Annotated[
        Literal["auto", "grpc", "http/protobuf"],
        _about("`grpc`, `http/protobuf`, or `auto`: gRPC where the port is 4317."),
    ] = "auto"
    headers: Annotated[
        Mapping[str, str],
        _about("Headers to send along, `NAME=VALUE`.", word="NAME=VALUE", parse=check_header_name),
    ] = field(default_factory=dict)
    interval: Annotated[float, Meta(ge=0.01, le=86400), _about("Collect and push at this pace.")] = 60.0
    timeout: Annotated[
        float,
        Meta(gt=0, le=600),
        _about("Wait this long for the collector's answer to one batch."),
    ] = 10.0
    compression: Annotated[
        Literal["gzip", "deflate", "none"],
        _about("How batches are compressed: `gzip`, `deflate` or `none`."),
    ] = "gzip"
    certificate: Annotated[str, _about("File of the authorities that may vouch for the collector.", word="FILE")] = ""
    client_certificate: Annotated[str, _about("File of the certificate to show to the collector.", word="FILE")] = ""
    client_key: Annotated[str, _about("File of the key of that certificate.", word="FILE")] = ""
    temporality: Annotated[
        Literal["cumulative", "delta", "lowmemory"],
        _about("Counters as totals (`cumulative`) or as what came on top (`delta`); `lowmemory` as OpenTelemetry's."),
    ] = "cumulative"
    histograms: Annotated[
        Literal["explicit_bucket_histogram", "base2_exponential_bucket_histogram"],
        _about(
            "How histograms are sent: `explicit_bucket_histogram` or `base2_exponential_bucket_histogram`.",
            word="AGGREGATION",
        ),
    ] = "explicit_bucket_histogram"
    events: Annotated[
        bool,
        _about("Also send log events: XIDs, lost and recovered GPUs, MIG changes, throttling."),
    ] = True
    throttle_percent: Annotated[
        int,
        Meta(ge=0, le=100),
        _about("An event when heat or the power brake holds clocks down for this much of the time; `0`: none."),
    ] = 10
    power_cap_percent: Annotated[
        int,
        Meta(ge=0, le=100),
        _about("The same for the power limit, which a busy GPU may reach all the time; `0`: none."),
    ] = 0
    buffer_seconds: Annotated[
        float,
        Meta(gt=0, le=86400),
        _about("Keep a batch that cannot be delivered this long; the oldest is dropped first."),
    ] = 900.0
    buffer_bytes: Annotated[
        int,
        Meta(ge=1, le=2**40),
        _about("Keep at most so many bytes of compressed batches."),
    ] = 64 << 20


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read, and how it is named.

    And all other settings, in their sections, and where each came from. `Config()` holds the defaults.
    """

    source: Annotated[
        SourceChoice,
        _about(
            "Who is asked: `nvml` (the driver), `auto` (NVML, waiting for the driver where it is not there yet; DCGM "
            "where `dcgm.address` is set and libdcgm is there), `dcgm`, `simulated:SPEC` (`8xh100`, `4xt4+4xl40s`) or "
            "`replay:FILE` (what `otelgpu record` wrote).",
            word="SOURCE",
            parse=parse_source,
        ),
    ] = SourceChoice("auto")
    driver_root: Annotated[
        str,
        _about(
            "Where the driver's files are mounted, if not in their usual places: `/run/nvidia/driver` of the GPU "
            "Operator, `/host`. Its libnvidia-ml.so.1 is taken, and no other.",
            word="PATH",
            parse=parse_root,
        ),
    ] = ""
    fields: Annotated[
        tuple[str, ...],
        _about(
            "Fields to read: names or ids, groups (`device`, `profiling`, ...), the words `default`, `all` and `none`, "
            "and CSV files as dcgm-exporter's: whatever has a `/` in it or ends in `.csv`.",
            word="NAMES",
            parse=parse_field_name,
        ),
    ] = ("default",)
    lenient: Annotated[
        bool,
        _about("Pass over rows of a CSV file that are wrong, with a warning and a count, instead of refusing them."),
    ] = False
    devices: Annotated[
        tuple[Pick, ...],
        _about(
            "GPUs to read: `all`, indexes (`0`, `2-5`), UUIDs or PCI bus ids; as dcgm-exporter also `f`, `g:0,2-5` "
            "(without MIG instances), `i:0-6` (instances alone) and `g+i`.",
            letter="-d",
            variable="DCGM_EXPORTER_DEVICES_STR",
            word="DEVICES",
            parse=parse_pick,
            split=split_devices,
        ),
    ] = (Pick.all(),)
    naming: Annotated[
        Literal["dcgm", "semconv"],
        _about("Names on the page: `dcgm` as dcgm-exporter, or `semconv` of OpenTelemetry."),
    ] = "dcgm"
    compat: Annotated[
        tuple[Literal["4.8.2", "4.8.3", "4.9"], ...],
        _about(
            "The dcgm-exporter whose names are kept: `4.8.2`, `4.8.3` (label `hostname`) or `4.9`; or two of them at "
            "once, `4.8.2,4.9`, while dashboards move on."
        ),
    ] = ("4.8.2",)
    hostname: Annotated[
        str,
        _about(
            "The host name label; empty: `NODE_NAME`, else the machine's own name; `none`: no such label.",
            word="NAME",
        ),
    ] = ""
    replace_blanks_in_model_name: Annotated[
        bool,
        _about(
            "`modelName` with `-` where the name of the model has blanks.",
            letter="--rbmn",
            variable="DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
        ),
    ] = False
    labels: Annotated[
        Mapping[str, str],
        _about(
            "More labels for every series of a GPU, `NAME=VALUE`.",
            flag="--label",
            word="NAME=VALUE",
            parse=check_label_name,
        ),
    ] = field(default_factory=dict)
    server: Server = Server()
    sampling: Sampling = Sampling()
    dcgm: Dcgm = Dcgm()
    suspended: Suspended = Suspended()
    counts: Counts = Counts()
    mig: Mig = Mig()
    kubernetes: Kubernetes = Kubernetes()
    jobs: Jobs = Jobs()
    processes: Processes = Processes()
    limits: Limits = Limits()
    otlp: Otlp = Otlp()
    simulated: Simulated = Simulated()
    embed: Embed = Embed()
    log: Log = Log()

    # No settings: the places of the values ("otelgpu.yaml:7") by key, or KEY[1], and what OTEL_* variables say.
    origins: Mapping[str, str] = field(default_factory=dict)
    exporters: tuple[str, ...] = ()
    log_exporters: tuple[str, ...] = ()
    logs: Otlp | None = None
    disabled: bool = False
    description: str = ""

    # And what the CSV files in `fields` hold, how many of their rows are passed over, and what is to be logged once.
    counters: tuple[Counter, ...] = ()
    skipped_rows: int = 0
    remarks: tuple[Remark, ...] = ()

    @property
    def has_page(self) -> bool:
        """Whether /metrics is served."""
        return not self.disabled and (not self.exporters or "prometheus" in self.exporters)

    @property
    def pushes(self) -> bool:
        """Whether metrics are sent anywhere, to a collector or the console."""
        return not self.disabled and (bool(self.otlp.endpoint) or "console" in self.exporters)

    @property
    def events_to(self) -> Otlp:
        """How log events are sent."""
        return self.otlp if self.logs is None else self.logs

    @property
    def tls_files(self) -> tuple[str, ...]:
        """The files of certificates and keys that whoever sends reads, and reads once."""
        named = (getattr(otlp, name) for otlp in (self.otlp, self.events_to) if otlp.endpoint for name in TLS_FILES)
        return tuple(filter(None, named))

    @property
    def sends_events(self) -> bool:
        """Whether log events are sent anywhere."""
        is_heard = bool(self.events_to.endpoint) or "console" in self.log_exporters
        return not self.disabled and self.otlp.events and is_heard

    def origin(self, key: str, entry: int | None = None) -> str:
        """Say where a value came from: its file and line, its variable, its flag, or "default"."""
        whole = self.origins.get(key, "default")
        return whole if entry is None else self.origins.get(f"{key}[{entry}]", whole)
