"""What the user gave: one text for one setting, and the place it stands at.

Rule 1: a problem is one finished line that begins with the place; only this module joins the two.
Rule 2: a file is read in whole, and never more of it than a file of its kind may have. Nothing waits for somebody to
        write it; a pipe that somebody is writing (`<(...)`, /dev/stdin) is as good as a file.
"""

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from otelgpu.config.keys import PREFIX, SETTINGS, Setting, Shape
from otelgpu.config.words import UnknownWordError, may_hold_password, nearest, plain, shown

FILE_VARIABLE = PREFIX + "CONFIG"
HEADERS = "otlp.headers"  # what these hold is often a password, so that a message shows no more than their place
ENDPOINT = "otlp.endpoint"
NAMELESS = "="  # stands for the name of an entry that was given without one
_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)


_ANY = 64 << 20  # bytes: more than any kind may have
Files: TypeAlias = dict[str, str]  # by path: what tells its content from another (see `digest`); "" where it has none


def opened(path: str) -> BinaryIO:
    """Open a file to read it. A pipe that nobody writes is an empty file. Raise OSError, or ValueError for no path."""

    def at_once(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)  # without the flag the call waits until somebody writes
        os.set_blocking(descriptor, True)
        return descriptor

    return open(path, "rb", opener=at_once)


def content_of(path: str, *, largest: int, kind: str) -> bytes:
    """Read a whole file, which has *largest* bytes at most. Raise ValueError with why it is no *kind* ("a list")."""
    try:
        with opened(path) as file:
            content = file.read(largest + 1)
            is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise ValueError((error.strerror or str(error)).lower()) from None
    except ValueError:  # a NUL or a lone surrogate in the path
        raise ValueError("not a file name") from None
    if is_pipe and not content:
        raise ValueError("a pipe from which nothing comes; expected a file")
    if len(content) > largest:
        raise ValueError(f"larger than {largest >> 20} MiB, so not {kind}")
    return content


def digest(content: bytes) -> str:
    """Return the first 16 digits that `sha256sum` shows of a file."""
    import hashlib  # here, because OpenSSL costs 4 MB

    return hashlib.sha256(content).hexdigest()[:16]


def outdated(files: Files) -> list[str]:
    """List the files that hold something else by now than what was read of them; a pipe is read once."""
    found = []
    for path, known in files.items():
        try:
            if known and Path(path).is_file() and digest(content_of(path, largest=_ANY, kind="settings")) != known:
                found.append(path)
        except ValueError:  # it cannot be read any more
            found.append(path)
    return found


class Flag(NamedTuple):
    """A flag as it was typed (`--reuse`), the key of its setting ("": see theirs.py), and its text."""

    spelling: str
    key: str
    text: str


class Problem(NamedTuple):
    """One line but for what may have been meant. The line in the file orders them; what is not about it comes last."""

    text: str
    line: int = sys.maxsize
    unknown: UnknownWordError | None = None  # what is said about its word comes between text and tail
    tail: str = ""

    def finished(self, *, hint: bool) -> str:
        """Give back the whole line; with *hint* the known word that is most like an unknown one is looked for."""
        if self.unknown is None:
            return self.text
        return f"{self.text}{self.unknown.near() if hint else self.unknown.otherwise}{self.tail}"


@dataclass(frozen=True, slots=True)
class Given:
    """One text for a setting, or for one entry of it. `text` is None where a list is there but empty."""

    setting: Setting
    text: str | None
    origin: str  # "otelgpu.yaml:7", "OTELGPU_SAMPLING_REUSE", "--reuse"
    place: str  # what a problem begins with
    got: str | None  # the text that a problem has to name; None where the place does
    line: int = sys.maxsize  # in the file
    name: str = ""  # of an entry of a mapping

    def problem(self, what: str | ValueError) -> Problem:
        """Finish a message about this text."""
        is_secret = self.setting.key == HEADERS or (self.setting.key == ENDPOINT and may_hold_password(self.got or ""))
        got = "" if self.got is None or is_secret else f", got {shown(self.got)}"
        if isinstance(what, UnknownWordError):
            return Problem(f"{self.place}: {what.sentence}", self.line, what, got)
        return Problem(f"{self.place}: {what}{got}", self.line)


def from_environ(environ: Mapping[str, str], problems: list[Problem]) -> Iterator[Given]:
    """Give back what the environment says. A variable that is empty says nothing."""
    variables = {setting.variable: setting for setting in SETTINGS.values()}
    for variable in sorted(environ):
        text = environ[variable]
        if not variable.startswith(PREFIX) or not text or variable == FILE_VARIABLE:
            continue
        setting = variables.get(variable)
        if setting is not None:
            for name, whole, value in _pieces(setting, text, split=True):
                yield Given(setting, value, variable, variable, whole, name=name)
        elif not _is_service_link(variable, text):
            unknown = UnknownWordError("no such setting", partial(_near, variable, (*variables, FILE_VARIABLE)))
            problems.append(Problem(f"{plain(variable)}: {unknown.sentence}", unknown=unknown))


def from_their_environ(environ: Mapping[str, str]) -> Iterator[Given]:
    """Give back what the variables of dcgm-exporter say, where a setting has one. An empty one says nothing."""
    for setting in SETTINGS.values():
        if setting.theirs and (text := environ.get(setting.theirs)):
            for name, whole, value in _pieces(setting, text, split=True):
                yield Given(setting, value, setting.theirs, setting.theirs, whole, name=name)


def from_flags(flags: Iterable[Flag]) -> Iterator[Given]:
    """Give back what the command line says. Of a flag that takes one value the last one counts, as everywhere."""
    for flag in flags:
        setting = SETTINGS[flag.key]
        for name, whole, value in _pieces(setting, flag.text, split=setting.shape is Shape.LIST):
            yield Given(setting, value, flag.spelling, f"{flag.spelling} {plain(whole)}", None, name=name)


def _pieces(setting: Setting, text: str, *, split: bool) -> Iterator[tuple[str, str, str | None]]:
    """Split a text into (name, whole entry, value); the name is "" but in a mapping, and NAMELESS where one lacks."""
    entries = setting.split(text) if split and setting.shape is not Shape.ONE else [text]
    if setting.shape is Shape.LIST and not entries:
        yield "", text, None
    for entry in entries:
        name, sign, value = entry.partition("=")
        if setting.shape is not Shape.MAPPING:
            yield "", entry, entry
        else:
            yield name.strip() if sign else NAMELESS, entry, value


def _near(variable: str, known: Iterable[str]) -> str:
    words = {name.removeprefix(PREFIX): name for name in known}
    near = nearest(variable.removeprefix(PREFIX), words)  # without what they all have in common
    return f"; did you mean {words[near]}?" if near else ""


def _is_service_link(variable: str, text: str) -> bool:
    """Tell whether Kubernetes made this variable, for a Service whose name begins with "otelgpu".

    Every pod of the namespace gets them (OTELGPU_PORT=tcp://10.0.0.7:9400, OTELGPU_SERVICE_HOST, ...), so they may not
    keep otelgpu from starting. https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    return _SERVICE_LINK.search(variable) is not None or (variable.endswith("_PORT") and "://" in text)
