"""The kinds of value in a web configuration file.

Rule 1: a parser takes the text of the file and gives back the value, or raises ValueError with a sentence that says
        what would be right, and what was got unless that is a secret.
"""

import re
from collections.abc import Callable, Collection

from otelgpu.config.words import meant, one_of, shown

MOST_COST = 15  # of a hash: a check takes 2 s then, twice as long for each more
# 16 bytes of salt and 23 of hash; the last character of the salt holds two bits, and bcrypt takes no others there.
_HASH = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(rf"(?:[0-9]{{1,9}}(?:\.[0-9]{{1,9}})?(?:{'|'.join(_UNITS)}))+")
_PIECE = re.compile(rf"([0-9.]+)({'|'.join(_UNITS)})")
_MOST_TOLD = 8  # choices in a message
_COUNT = re.compile("[1-9][0-9]{0,8}")
_MOST_BURST = 1_000_000
_TRUE, _FALSE = ("true", "yes", "on", "y"), ("false", "no", "off", "n")  # of YAML 1.1


def choice(choices: Collection[str]) -> Callable[[str], str]:
    """Make what reads one of the choices."""

    def parse(text: str) -> str:
        if text not in choices:
            expected = one_of(choices) if len(choices) <= _MOST_TOLD else f"a name such as {next(iter(choices))}"
            raise ValueError(f"expected {expected}{meant(text, choices)}, got {shown(text)}")
        return text

    return parse


def truth(text: str) -> bool:
    """Read a boolean of YAML 1.1. Raise ValueError."""
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"expected true or false, got {shown(text)}")
    return text.lower() in _TRUE


def seconds(text: str) -> float:
    """Read a duration as Go writes it. Raise ValueError."""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"expected a duration, such as 100ms or 1s, got {shown(text)}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(text))


def count(text: str) -> int:
    """Read a number of requests. Raise ValueError."""
    if not (_COUNT.fullmatch(text) and int(text) <= _MOST_BURST):
        raise ValueError(f"expected a number of requests, 1 to {_MOST_BURST}, got {shown(text)}")
    return int(text)


def file_name(text: str) -> str:
    """Read the name of a file. Raise ValueError."""
    if "\0" in text:
        raise ValueError("not a file name")
    return text


def header(*values: str) -> Callable[[str], str]:
    """Make what reads the value of a header; without *values* any text will do."""

    def parse(text: str) -> str:
        if not (text.isprintable() and text.isascii()):
            raise ValueError("expected one line of plain characters")
        return choice(values)(text) if values and text else text

    return parse


def bcrypt_hash(text: str) -> bytes:
    """Read what bcrypt makes of a password. Raise ValueError."""
    found = _HASH.fullmatch(text)
    if found is None:
        raise ValueError("expected a hash as bcrypt makes it ($2y$10$ and 53 characters more): `htpasswd -nBC 10 NAME`")
    if not 4 <= int(found[1]) <= MOST_COST:  # noqa: PLR2004 - bcrypt's own least
        raise ValueError(
            f"expected a hash of cost 4 to {MOST_COST}, got {int(found[1])}: each check would take too long"
        )
    return text.encode()
