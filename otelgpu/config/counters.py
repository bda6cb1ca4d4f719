"""CSV files that say which fields are shown, and how: `NAME, TYPE, HELP` in each row, as dcgm-exporter takes them.

Rule 1: whatever dcgm-exporter accepts means the same here. Beyond that: comments that are indented, tabs, a byte order
        mark, quoted help after a blank, a quote within help, and types in capitals.
Rule 2: whatever a file holds ends as rows, problems and remarks, never as an exception. A line that is no comment and
        not blank is part of one of them: no row is lost without a word.
Rule 3: a line is counted as an editor does: by line feeds, comments and blank lines included.
Rule 4: a file that has rows with problems still gives its other rows; who reads it decides whether they are wanted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from otelgpu.config.given import Problem, content_of
from otelgpu.config.listed import LABEL, Counter, Remark
from otelgpu.config.values import near_field
from otelgpu.config.words import UnknownWordError, meant, one_of, plain, shown

KINDS = ("gauge", "counter", LABEL, "histogram", "summary", "untyped")
SHAPED = ("histogram", "summary")  # dcgm-exporter writes the word over plain numbers
COLUMNS = 3
LARGEST = 1 << 20  # bytes
_BLANKS = " \t"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(slots=True)
class Parsed:
    """What a file holds."""

    rows: list[Counter] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    bad: set[int] = field(default_factory=set)  # the lines of rows that have a problem


def read(path: str) -> bytes:
    """Read a file. Raise ValueError with what is wrong with it as a whole."""
    content = content_of(path, largest=LARGEST, kind="a list of fields")
    if content.startswith(_UTF16):
        raise ValueError("the file is UTF-16; expected UTF-8")
    if b"\0" in content:
        raise ValueError("not a text file")
    return content


def parse(content: bytes, name: str) -> Parsed:
    """Read all rows of a file; *name* is the file's in messages."""
    parsed = Parsed()
    lines = [line.removesuffix("\r") for line in content.decode("utf-8-sig", "replace").split("\n")]
    _remark_bytes(content, name, parsed)
    at = 0
    while at < len(lines):
        text = lines[at].strip()
        if not text or text.startswith("#"):
            at += 1
            continue
        place = f"{name}:{at + 1}"
        try:
            cells, after = _cells(lines, at)
            if after > at + 1:
                parsed.remarks.append(Remark(f"{place}: the quoted text goes on to line {after}"))
            row, problems = _row(cells, place, at + 1)
        except ValueError as error:
            row, problems, after = None, [Problem(f"{place}: {error}, got {shown(text)}")], at + 1
        if row is None:
            parsed.problems += problems
            parsed.bad.add(at + 1)
        else:
            parsed.rows.append(row)
        at = after
    return parsed


def merged(rows: Iterable[Counter], remarks: list[Remark]) -> tuple[Counter, ...]:
    """Leave out rows that say again what is shown. One field may have two names, but stands once under each."""
    kept: dict[tuple[int, str], Counter] = {}
    first: dict[int, Counter] = {}
    for row in rows:
        before = kept.get((row.field, row.name)) or first.get(row.field)
        if before is None or _may_stand_beside(row, before):
            kept[row.field, row.name] = row
            first.setdefault(row.field, row)
            if row.kind in SHAPED:
                text = f"{row.place}: {row.spelling} is one number, so its type is no {row.kind}; expected gauge"
                remarks.append(Remark(text))
            continue
        where = f"line {before.line}" if _file(before) == _file(row) else before.place
        remarks.append(Remark(f"{row.place}: {row.spelling} is passed over: the same field stands in {where}"))
    return tuple(kept.values())


def _may_stand_beside(row: Counter, before: Counter) -> bool:
    """Whether one field is shown twice: under two names that were both written out, and as a family each time."""
    return bool(row.name and before.name) and row.name != before.name and LABEL not in (row.kind, before.kind)


def _file(row: Counter) -> str:
    return row.place.rpartition(":")[0]


def _cells(lines: Sequence[str], first: int) -> tuple[list[str], int]:
    """Split the row that begins in line *first*; also give the line after it. Raise ValueError."""
    cells: list[str] = []
    at, line, last = 0, lines[first], first
    while True:
        while line[at : at + 1] and line[at] in _BLANKS:
            at += 1
        if line[at : at + 1] == '"':
            cell, line, at, last = _quoted(lines, last, at + 1)
            end = line.find(",", at)
            if (line[at:] if end < 0 else line[at:end]).strip():
                raise ValueError('text stands behind the closing quote; a quote within quotes is written ""')
        else:
            end = line.find(",", at)
            cell = line[at:] if end < 0 else line[at:end]
        cells.append(cell.strip())
        if end < 0:
            return cells, last + 1
        at = end + 1


def _quoted(lines: Sequence[str], number: int, at: int) -> tuple[str, str, int, int]:
    """Read on from behind an opening quote; give the text, and line, place and number behind the closing one."""
    pieces: list[str] = []
    line = lines[number]
    while True:
        end = line.find('"', at)
        if end < 0:
            pieces.append(line[at:] + "\n")
            number, at = number + 1, 0
            if number == len(lines):
                raise ValueError("the quote that opens here is never closed")
            line = lines[number]
        elif line[end + 1 : end + 2] == '"':
            pieces.append(line[at : end + 1])
            at = end + 2
        else:
            return "".join((*pieces, line[at:end])), line, end + 1, number


def _row(cells: Sequence[str], place: str, line: int) -> tuple[Counter | None, list[Problem]]:
    from otelgpu.fields import Number, find  # here, because most starts have no file

    if len(cells) != COLUMNS:
        more = "; help with a comma stands in double quotes" if len(cells) > COLUMNS else ""
        return None, [Problem(f"{place}: expected NAME, TYPE, HELP{more}, got {len(cells)} of them")]
    name, kind, text = cells[0], cells[1].lower(), cells[2]
    problems = list(_wrong_kind(cells[1], place))
    found = find(name)
    if found is None:
        unknown = UnknownWordError("no such field", partial(near_field, name))
        problems.insert(0, Problem(f"{place}: {unknown.sentence}", unknown=unknown, tail=f", got {shown(name)}"))
    elif found.number is Number.TEXT and kind != LABEL and not problems:
        problems.append(Problem(f"{place}: {plain(name)} is a text: expected label, got {shown(cells[1])}"))
    if found is None or problems:
        return None, problems
    return Counter(found.id, name, "" if name.isdecimal() else name, kind, text, place, line), []


def _wrong_kind(kind: str, place: str) -> Iterator[Problem]:
    if kind.lower() not in KINDS:
        near = meant(kind.lower(), KINDS)
        yield Problem(f"{place}: expected {one_of(KINDS)}{near}, got {shown(kind)}")


def _remark_bytes(content: bytes, name: str, parsed: Parsed) -> None:
    try:
        content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}); such characters are replaced"
        parsed.remarks.append(Remark(text))
