"""The settings file: YAML, read as text with the line of every value.

Rule 1: scalars stay text. What YAML makes of them (4.9 a number, no a boolean) is not used; only null is, as "not set".
Rule 2: whatever the file holds becomes problems with their line, never an exception; nothing is built from tags.
Rule 3: imported only when there is a file (yaml costs 20 ms).
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

import yaml

from otelgpu.config.given import HEADERS, Files, Given, Problem, content_of, digest
from otelgpu.config.keys import SECTIONS, SETTINGS, Setting, Shape
from otelgpu.config.words import UnknownWordError, meant, plain, shown, whole

_LARGEST = 1 << 20  # bytes
_DEEPEST = 20
# Where what was written by mistake may be a password, or a key: a message does not show it.
SECRETS = frozenset((HEADERS, "basic_auth_users", "tls_server_config"))
_CORE = "tag:yaml.org,2002:"
_SCALARS = {f"{_CORE}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "value")}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnusableError(Exception):
    """Nothing can be taken from the file; the text is the finished problem."""


def from_file(path: str, *, asked_by: str, problems: list[Problem], files: Files) -> Iterator[Given]:
    """Give back every value of the file in its order, and add what is wrong with the file to the problems.

    `asked_by` is where the path was given: "--config otelgpu.yaml", "OTELGPU_CONFIG: otelgpu.yaml".
    """
    try:
        files[path] = ""
        root = root_of(path, asked_by=asked_by, files=files)
    except UnusableError as error:
        problems.append(Problem(str(error)))
        return
    if root is not None:
        yield from Walk(whole(path), problems).settings(root)


def root_of(path: str, *, asked_by: str, files: Files | None = None) -> yaml.Node | None:
    """Give back what the file holds as nodes, None where it holds nothing; note it in *files*. Raise UnusableError."""
    root = _root(_text(path, asked_by, {} if files is None else files), name=whole(path))
    return None if root is None or is_null(root) else root


def _text(path: str, asked_by: str, files: Files) -> str:
    name = whole(path)
    if not path:
        raise UnusableError(f"{asked_by}: expected a file name")
    try:
        content = content_of(path, largest=_LARGEST, kind="a settings file")
    except ValueError as error:
        raise UnusableError(f"{asked_by}: {error}") from None
    files[path] = digest(content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableError(f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x})") from None
    if bad := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise UnusableError(f"{name}:{line}: the character {shown(bad.group())} may not stand in YAML")
    return text


def _root(text: str, *, name: str) -> yaml.Node | None:
    try:
        _check(text, name=name)
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line if mark else 0
        what = _spoken(error)
        if re.match(r" *\t", "".join(text.split("\n")[line : line + 1])):
            what = "a tab cannot indent; use spaces"
        raise UnusableError(f"{name}:{line + 1}: {what}") from None


def _spoken(error: yaml.YAMLError) -> str:
    parts = (getattr(error, name, None) for name in ("problem", "context"))
    return f"not YAML: {', '.join(part for part in parts if part)}"


def _check(text: str, *, name: str) -> None:
    """Refuse what composing cannot take: depth overflows its stack, an alias inside its own anchor never ends."""
    opened: list[str | None] = []
    documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        what = ""
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            what = "a second document begins here; settings are one document" if documents > 1 else ""
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(event.anchor)
            what = "nested too deeply" if len(opened) > _DEEPEST else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in opened:
            what = f"*{event.anchor} stands inside what it names"
        if what:
            raise UnusableError(f"{name}:{line_of(event)}: {what}")


class Walk:
    """One walk over the nodes of a file: knows which keys it has met, and where. What is wrong goes to *problems*."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self.name = name
        self.problems = problems
        self._met: dict[str, int] = {}

    def settings(self, node: yaml.Node, *, section: str = "") -> Iterator[Given]:
        for key, key_node, value in self.items(node, section, expected="settings, such as naming: dcgm"):
            if not section and key in SECTIONS:
                if self.is_new(key, key_node) and not is_null(value):
                    yield from self.settings(value, section=key)
            elif key not in SETTINGS:
                self.unknown(key_node, key, partial(_meant, key))
            elif self.is_new(key, key_node) and not is_null(value):
                yield from self._values(SETTINGS[key], value)

    def _values(self, setting: Setting, node: yaml.Node) -> Iterator[Given]:
        if setting.shape is Shape.MAPPING:
            for key, key_node, value in self.items(node, setting.key, expected="NAME: VALUE lines"):
                if self.is_new(key, key_node) and not is_null(value) and self.is_text(value, key, "text"):
                    yield self._given(setting, value.value, value, name=key_node.value)
        elif setting.shape is Shape.LIST and isinstance(node, yaml.SequenceNode):
            if not node.value:
                yield self._given(setting, None, node)
            for item in node.value:
                if self.is_text(item, setting.key, "one value"):
                    yield self._given(setting, item.value, item)
        elif self.is_text(node, setting.key, "a list" if setting.shape is Shape.LIST else "one value"):
            pieces = setting.split(node.value) if setting.shape is Shape.LIST else [node.value]
            for piece in pieces or [None]:
                yield self._given(setting, piece, node)

    def items(self, node: yaml.Node, prefix: str, *, expected: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Give back the entries of a mapping: the key in full, its node, the value's node."""
        if not isinstance(node, yaml.MappingNode) or node.tag != f"{_CORE}map":
            is_secret = prefix in SECRETS and isinstance(node, yaml.ScalarNode)
            self.wrong(node, prefix, f"expected {expected}, got {'one text' if is_secret else _kind(node)}")
            return
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong(key_node, prefix, f"a key is one word, not {_kind(key_node)}")
            elif key_node.tag == f"{_CORE}merge":
                self.wrong(key_node, prefix, "merge keys (<<) are not understood; write the settings out")
            else:
                yield f"{prefix}.{key_node.value}" if prefix else key_node.value, key_node, value

    def _given(self, setting: Setting, text: str | None, node: yaml.Node, *, name: str = "") -> Given:
        origin = f"{self.name}:{line_of(node)}"
        key = f"{setting.key}.{name}" if setting.shape is Shape.MAPPING else setting.key
        got = None if setting.shape is Shape.MAPPING else text
        return Given(setting, text, origin, f"{origin}: {plain(key)}", got, line=line_of(node), name=name)

    def is_new(self, key: str, node: yaml.Node) -> bool:
        """Whether a key is met for the first time; a second time is a problem."""
        if key in self._met:
            self.wrong(node, key, f"set twice, first in line {self._met[key]}")
            return False
        self._met[key] = line_of(node)
        return True

    def is_text(self, node: yaml.Node, key: str, expected: str) -> bool:
        """Whether a node is one text; anything else is a problem."""
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS and not is_null(node):
            return True
        self.wrong(node, key, f"expected {expected}, got {_kind(node)}")
        return False

    def unknown(self, node: yaml.Node, key: str, near: Callable[[], str]) -> None:
        """Say that there is no such key; *near* finds what was meant."""
        line = line_of(node)
        unknown = UnknownWordError("no such setting", near)
        place = f"{self.name}:{line}: {f'{plain(key)}: ' if key else ''}"
        self.problems.append(Problem(f"{place}{unknown.sentence}", line, unknown))

    def wrong(self, node: yaml.Node, key: str, what: str) -> None:
        """Add a problem with its line and key."""
        line = line_of(node)
        self.problems.append(Problem(f"{self.name}:{line}: {f'{plain(key)}: ' if key else ''}{what}", line))


def line_of(of: yaml.Node | yaml.Event) -> int:
    """Give the line in which a node begins, from 1."""
    return int(of.start_mark.line) + 1 if of.start_mark else 1


def is_null(node: yaml.Node) -> bool:
    """Whether nothing stands there: `null`, `~` or an empty value."""
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_CORE}null"


def _kind(node: yaml.Node) -> str:
    if is_null(node):
        return "nothing"
    if node.tag not in {*_SCALARS, f"{_CORE}map", f"{_CORE}seq"}:
        return f"the tag {shown(node.tag.replace(_CORE, '!!'))}"
    if isinstance(node, yaml.ScalarNode):
        return shown(node.value)
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _meant(key: str) -> str:
    last_words = {setting.rpartition(".")[2]: setting for setting in SETTINGS}
    word = key.rpartition(".")[2]
    return f"; did you mean {last_words[word]}?" if word in last_words else meant(key, (*SETTINGS, *SECTIONS))
