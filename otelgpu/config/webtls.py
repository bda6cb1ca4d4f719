"""What a web configuration file says of TLS, as the context that Python's ssl needs.

Rule 1: Go's words are rows of tables here. What OpenSSL cannot do as Go does is done more strictly, or is a problem.
Rule 2: a key goes from where it stands into the context; it is never written to a disk.
"""

import os
import ssl
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from otelgpu.config.given import opened
from otelgpu.config.words import one_of, whole

NOBODY, ANY, CHECKED = "NoClientCert", "RequireAnyClientCert", "RequireAndVerifyClientCert"
_GIVEN = "VerifyClientCertIfGiven"
# Go's client_auth_type. RequireClientCert is an old name that exporter-toolkit still takes.
CLIENTS: Mapping[str, ssl.VerifyMode] = {
    NOBODY: ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # asks, and then looks at nothing
    ANY: ssl.CERT_REQUIRED,
    "RequireClientCert": ssl.CERT_REQUIRED,
    _GIVEN: ssl.CERT_OPTIONAL,
    CHECKED: ssl.CERT_REQUIRED,
}
VERSIONS: Mapping[str, ssl.TLSVersion] = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
CURVES: Mapping[str, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
# Go's names of suites, and OpenSSL's. Those of TLS 1.3 are always on, in Go too.
CIPHERS: Mapping[str, str] = {
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    # Go lists these as insecure since 1.22; files from before hold them.
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
_LARGEST = 1 << 20  # bytes of a file with certificates

Complain = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key, as a file or as text, and the key of the setting that gave it."""

    key: str
    path: str = ""
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """What the section asks for, in Go's words."""

    cert: Pem | None
    key: Pem | None
    authorities: Pem | None
    clients: str
    sans: frozenset[str]
    least: str
    most: str
    ciphers: tuple[str, ...]
    curves: tuple[str, ...]
    ours_first: bool

    @property
    def files(self) -> tuple[str, ...]:
        """The files that are read for it."""
        return tuple(pem.path for pem in (self.cert, self.key, self.authorities) if pem is not None and pem.path)


class _EncryptedError(Exception):
    """The key asks for a password."""


def made(tls: Tls, complain: Complain, remarks: list[str]) -> ssl.SSLContext | None:
    """Make the context. *complain* is told the key of a setting and what is wrong with it; None where anything is.

    What is done otherwise than by Go, and harms nobody, is added to the remarks.
    """
    is_good = True

    def wrong(key: str, what: str) -> None:
        nonlocal is_good
        is_good = False
        complain(key, what)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    if tls.ours_first:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    _versions(context, tls, wrong)
    _curves(context, tls, remarks)
    if tls.cert is not None and tls.key is not None:
        _certificate(context, tls.cert, tls.key, wrong)
    _clients(context, tls, wrong, remarks)
    return context if is_good else None


def _versions(context: ssl.SSLContext, tls: Tls, complain: Complain) -> None:
    least, most = VERSIONS[tls.least], VERSIONS[tls.most]
    suites = [suite for name in tls.ciphers if (suite := CIPHERS[name])]
    if least > most:
        key = "min_version" if tls.least != "TLS12" else "max_version"
        complain(key, f"expected {tls.least} to be at most {tls.most}")
        return
    if tls.ciphers and not suites:
        least = ssl.TLSVersion.TLSv1_3
        if most < least:
            complain("cipher_suites", f"expected a suite of TLS 1.2: {tls.most} knows none of these")
            return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # whoever asks for TLS 1.0 knows that it is old
        context.minimum_version, context.maximum_version = least, most
    is_old = least < ssl.TLSVersion.TLSv1_2
    if suites or is_old:
        # OpenSSL 3 signs nothing for TLS 1.0 and 1.1 at its usual level.
        context.set_ciphers(":".join((*(suites or ("DEFAULT",)), *(("@SECLEVEL=0",) if is_old else ()))))


def _curves(context: ssl.SSLContext, tls: Tls, remarks: list[str]) -> None:
    if len(tls.curves) == 1:
        context.set_ecdh_curve(CURVES[tls.curves[0]])
    elif tls.curves:
        remarks.append("of several curve_preferences none is enforced: OpenSSL's own choice, X25519 first, stands")


def _certificate(context: ssl.SSLContext, cert: Pem, key: Pem, complain: Complain) -> None:
    chain, secret = _text(cert, complain), _text(key, complain)
    is_chain = chain is not None and "-----BEGIN CERTIFICATE-----" in chain
    is_secret = secret is not None and "PRIVATE KEY-----" in secret
    if chain is not None and not is_chain:
        complain(cert.key, "expected a certificate in PEM, which begins with -----BEGIN CERTIFICATE-----")
    if secret is not None and not is_secret:
        complain(key.key, "expected a private key in PEM, which begins with -----BEGIN PRIVATE KEY-----")
    if chain is None or secret is None or not (is_chain and is_secret):
        return

    def password() -> str:
        raise _EncryptedError

    try:
        with _in_memory(chain) as chain_path, _in_memory(secret) as secret_path:
            context.load_cert_chain(chain_path, secret_path, password)
    except _EncryptedError:
        complain(key.key, "expected a key without a password: nobody is there to type it")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            complain(key.key, f"expected the key of the certificate in {cert.key}: this one is another's")
        else:
            complain(cert.key, f"the certificate and the key in {key.key} cannot be used: {_said(error)}")
    except OSError as error:
        complain(cert.key, f"cannot be used: {_said(error)}")


def _clients(context: ssl.SSLContext, tls: Tls, complain: Complain, remarks: list[str]) -> None:
    context.verify_mode = CLIENTS[tls.clients]
    if context.verify_mode is ssl.CERT_NONE:
        return
    is_any = tls.clients not in (CHECKED, _GIVEN)
    if tls.authorities is None:
        if is_any:
            # OpenSSL, as Python has it, takes no certificate unseen; and one that anybody can make proves nothing.
            complain("client_auth_type", f"expected {one_of((CHECKED, _GIVEN))}, or client_ca_file: see docs/web.md")
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if is_any:
        remarks.append(f"client_auth_type {tls.clients}: certificates of clients are checked all the same")
    text = _text(tls.authorities, complain)
    if text is None:
        return
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        complain(tls.authorities.key, f"expected certificates in PEM: {_said(error)}")


def _text(pem: Pem, complain: Complain) -> str | None:
    """Give the text; None when the file cannot be read, which is a problem."""
    if not pem.path:
        content = pem.text.encode("utf-8", "replace")
    else:
        try:
            with opened(pem.path) as file:
                content = file.read(_LARGEST + 1)
        except (OSError, ValueError) as error:
            complain(pem.key, f"{whole(pem.path)}: {_said(error)}")
            return None
    if len(content) > _LARGEST:
        complain(pem.key, f"larger than {_LARGEST >> 20} MiB, so not what is expected here")
        return None
    return content.decode("ascii", "replace").replace("\ufffd", "?")  # between the certificates stands what people like


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give a path that leads to a text for a moment; ssl reads certificates from files alone."""
    descriptor = os.memfd_create("otelgpu-pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it holds none").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)
