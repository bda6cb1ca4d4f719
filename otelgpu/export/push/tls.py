"""What is wrong with the certificates and keys of a connection, told at the start.

Rule 1: they are read with the standard library before gRPC gets them: it ends the whole process where a key or its
        certificate is missing, and leaves a file that holds no certificate to every attempt.
"""

import os
import ssl
import stat
from collections.abc import Callable, Iterator

from otelgpu.config import Otlp
from otelgpu.config.given import opened
from otelgpu.config.settings import TLS_FILES
from otelgpu.config.words import plain


def problems(otlp: Otlp, origin: Callable[[str], str], *, is_used: bool) -> Iterator[str]:
    """Say what is wrong with the files of *otlp*; *is_used*: the connection has TLS, so that they must hold a pair."""
    unreadable = {name for name in TLS_FILES if (path := getattr(otlp, name)) and not _is_readable(path)}
    for name in sorted(unreadable):
        yield f"{origin(name)}: {plain(getattr(otlp, name))}: cannot be read"
    if not is_used:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if otlp.certificate and "certificate" not in unreadable:
        try:
            context.load_verify_locations(otlp.certificate)
        except (ssl.SSLError, OSError):
            yield f"{origin('certificate')}: {plain(otlp.certificate)}: expected certificates in PEM form"
    if otlp.client_key and not otlp.client_certificate and "client_key" not in unreadable:
        yield f"{origin('client_key')}: {plain(otlp.client_key)}: the certificate of this key is not set"
    if otlp.client_certificate and not unreadable & {"client_certificate", "client_key"}:
        try:
            context.load_cert_chain(otlp.client_certificate, otlp.client_key or None, password=_no_password)
        except (ssl.SSLError, OSError, ValueError):
            where = f"in {plain(otlp.client_key)}" if otlp.client_key else "behind it, as no client key is set"
            what = f"expected a certificate in PEM form, and its key, without a password, {where}"
            yield f"{origin('client_certificate')}: {plain(otlp.client_certificate)}: {what}"


def _no_password() -> str:
    """Nobody is there to type one."""
    return ""


def _is_readable(path: str) -> bool:
    try:
        with opened(path) as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode)  # a pipe would be empty when it is read once more
    except (OSError, ValueError):
        return False
