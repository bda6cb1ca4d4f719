"""The settings of the server: where, for how many and how guarded the pages are. See settings.py for the rules."""

from typing import Annotated

from msgspec import Meta, Struct

from otelgpu.config.about import about as _about
from otelgpu.config.values import Address, parse_address


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
    ] = 100
    systemd_socket: Annotated[
        bool,
        _about(
            "Serve on the sockets that systemd passes, and not on `server.listen`.",
            flag="--web-systemd-socket",
            variable="DCGM_EXPORTER_SYSTEMD_SOCKET",
        ),
    ] = False
    reload_interval: Annotated[
        Annotated[float, Meta(ge=0.1, le=3600)] | None,
        _about("Look this often whether a file of settings, fields or `otlp` has changed; `null`: only at SIGHUP."),
    ] = 5.0
    expected_gpus: Annotated[
        int, Meta(ge=0, le=256), _about("`/readyz` is 503 while fewer GPUs than this answer.", flag="--expected-gpus")
    ] = 0
    web_config: Annotated[
        str,
        _about(
            "Prometheus' web configuration file: TLS, passwords, headers (docs/web.md).",
            flag="--web-config-file",
            variable="DCGM_EXPORTER_WEB_CONFIG_FILE",
            word="FILE",
        ),
    ] = ""
