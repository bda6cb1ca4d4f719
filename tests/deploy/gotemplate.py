"""Go's templates with the functions of Helm's that the chart uses, for machines without helm.

Rule 1: strict: an unknown function, a key that is not there, or a value that is nothing where text is wanted is an
        error, also where Go would print something.
Rule 2: no more than the chart needs. Where there is a helm, a test compares both on every file of values.
"""

import copy
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

_ACTION = re.compile(r"(\{\{-?\s*(?:/\*.*?\*/|(?:\"(?:[^\"\\]|\\.)*\"|[^\"])*?)\s*-?\}\})", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(\"(?:[^\"\\]|\\.)*\")|(-?\d+)|(\$?\w*(?:\.\w+)+|\$\w*|\.|\w+)|(:=|[()|,]))")


class TemplateError(Exception):
    """A template that cannot be rendered, and why."""


Scope = dict[str, Any]  # variables by name; "$" is the root


@dataclass(slots=True)
class Node:
    """Text, an action or a block; `branches` are pairs of a condition ("" for else) and what stands under it."""

    word: str
    argument: str = ""
    branches: list[tuple[str, list["Node"]]] = field(default_factory=list)


def _pieces(source: str) -> Iterator[tuple[bool, str]]:
    """Cut a template into actions and text, trimmed as the dashes say."""
    cut = _ACTION.split(source)
    for at, piece in enumerate(cut):
        if at % 2:
            if not piece.strip("{}- \n").startswith("/*"):
                yield True, piece[2:-2].removeprefix("-").removesuffix("-").strip()
            continue
        text = piece.lstrip() if at and cut[at - 1].endswith("-}}") else piece
        yield False, text.rstrip() if at + 1 < len(cut) and cut[at + 1].startswith("{{-") else text


def parse(source: str) -> list[Node]:
    """Read a template."""
    top: list[Node] = []
    here, stack = top, list[tuple[Node, list[Node]]]()
    for is_action, text in _pieces(source):
        word = text.split(maxsplit=1)[0] if is_action and text else ""
        if not is_action:
            here.append(Node("text", text))
        elif word in ("if", "with", "range", "define"):
            block = Node(word, branches=[(text.removeprefix(word).strip(), [])])
            here.append(block)
            stack.append((block, here))
            here = block.branches[-1][1]
        elif word == "else":
            condition = re.sub(r"^else\s*(if\s+)?", "", text)
            stack[-1][0].branches.append((condition, []))
            here = stack[-1][0].branches[-1][1]
        elif word == "end":
            _, here = stack.pop()
        else:
            here.append(Node("action", text))
    if stack:
        raise TemplateError(f"{stack[-1][0].word} without end")
    return top


@dataclass
class Chart:
    """Templates by name, and what they are rendered with."""

    files: Mapping[str, str]  # "templates/x.yaml", "files/x"
    defined: dict[str, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parsed = {name: parse(text) for name, text in self.files.items() if name.startswith("templates/")}
        for nodes in self.parsed.values():
            for node in nodes:
                if node.word == "define":
                    self.defined[node.branches[0][0].strip('"')] = node.branches[0][1]

    def render(self, name: str, root: Any) -> str:
        """Render one file, or what was defined under that name."""
        found = self.parsed.get(name) or self.defined.get(name)
        if found is None:
            raise TemplateError(f"no template {name!r}")
        return self._nodes(found, root, {"$": root})

    def _nodes(self, nodes: list[Node], dot: Any, scope: Scope) -> str:
        return "".join(self._node(node, dot, scope) for node in nodes)

    def _node(self, node: Node, dot: Any, scope: Scope) -> str:
        match node.word:
            case "text":
                return node.argument
            case "action":
                return self._action(node.argument, dot, scope)
            case "range":
                items = self._value(node.branches[0][0], dot, scope) or ()
                return "".join(self._nodes(node.branches[0][1], each, dict(scope)) for each in items)
            case "define":
                return ""
            case _:
                return self._branch(node, dot, scope)

    def _action(self, argument: str, dot: Any, scope: Scope) -> str:
        name, declares, expression = argument.partition(":=")
        if declares:
            scope[name.strip()] = self._value(expression, dot, scope)
            return ""
        return _printed(self._value(argument, dot, scope), argument)

    def _branch(self, node: Node, dot: Any, scope: Scope) -> str:
        for condition, nodes in node.branches:
            value = self._value(condition, dot, scope) if condition else True
            if value:
                return self._nodes(nodes, value if node.word == "with" and condition else dot, dict(scope))
        return ""

    def _value(self, expression: str, dot: Any, scope: Scope) -> Any:
        tokens, at = list[tuple[str, ...]](), 0
        while at < len(expression.rstrip()):
            match = _TOKEN.match(expression, at)
            if match is None:
                raise TemplateError(f"cannot read {expression!r}")
            tokens.append(match.groups(""))
            at = match.end()
        value = self._pipe(tokens, dot, scope)
        if tokens:
            raise TemplateError(f"too much in {expression!r}")
        return value

    def _pipe(self, tokens: list[tuple[str, ...]], dot: Any, scope: Scope) -> Any:
        piped: list[Any] = []
        while True:
            operands: list[Any] = []
            name = tokens[0][2]
            call = FUNCTIONS.get(name)
            if name == "include":
                call = self.render
            if call is not None:
                tokens.pop(0)
            while tokens and tokens[0][3] not in ("|", ")"):
                operands.append(self._operand(tokens, dot, scope))
            if call is None and callable(operands[0]):
                call = operands.pop(0)
            operands += piped
            if call is None and len(operands) != 1:
                raise TemplateError(f"no function {name!r}")
            piped = [call(*operands) if call is not None else operands[0]]
            if not tokens or tokens[0][3] == ")":
                return piped[0]
            tokens.pop(0)

    def _operand(self, tokens: list[tuple[str, ...]], dot: Any, scope: Scope) -> Any:
        text, number, name, sign = tokens.pop(0)
        if text:
            return text[1:-1].replace('\\"', '"').replace("\\n", "\n")
        if number:
            return int(number)
        if sign == "(":
            value = self._pipe(tokens, dot, scope)
            tokens.pop(0)
            return value
        if name in ("true", "false"):
            return name == "true"
        start, *steps = name.split(".")
        if start and start not in scope:
            raise TemplateError(f"no function or variable {start!r}")
        value = scope[start] if start else dot
        for step in filter(None, steps):
            if not isinstance(value, Mapping) or step not in value:
                raise TemplateError(f"{name}: there is no {step!r}")
            value = value[step]
        return value


def _printed(value: Any, expression: str) -> str:
    """Print a value as Go does."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise TemplateError(f"{expression}: {value!r} is no text")


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=False, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _indent(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _quote(value: Any) -> str:
    return '"' + _printed(value, "quote").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _merge(under: Any, over: Any) -> Any:
    """Merge as Helm merges values: maps into maps, everything else is replaced."""
    if not (isinstance(under, Mapping) and isinstance(over, Mapping)):
        return copy.deepcopy(over)
    return {**under, **{key: _merge(under.get(key), value) for key, value in over.items()}}


def _first(values: tuple[Any, ...], *, wanted: bool) -> Any:
    return next((value for value in values if bool(value) is wanted), values[-1])


def _equal(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        raise TemplateError(f"{left!r} and {right!r} are not of one kind")
    return bool(left == right)


def _required(message: str, value: Any) -> Any:
    if not value:
        raise TemplateError(message)
    return value


def _fail(message: str) -> str:
    raise TemplateError(message)


def _format(pattern: str, *values: str) -> str:
    if re.findall(r"%.", pattern) != ["%s"] * len(values) or not all(isinstance(value, str) for value in values):
        raise TemplateError(f"{pattern!r}: only %s, and only text")
    return pattern % tuple(values)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": lambda *values: _first(values, wanted=False),
    "or": lambda *values: _first(values, wanted=True),
    "not": lambda value: not value,
    "eq": _equal,
    "ne": lambda left, right: not _equal(left, right),
    "contains": lambda part, text: part in text,
    "default": lambda fallback, value: value or fallback,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "fail": _fail,
    "fromYamlArray": yaml.safe_load,
    "has": lambda item, items: item in items,
    "hasSuffix": lambda end, text: text.endswith(end),
    "join": lambda separator, items: separator.join(items or ()),
    "list": lambda *items: list(items),
    "mergeOverwrite": lambda *maps: functools.reduce(_merge, maps),
    "nindent": lambda width, text: "\n" + _indent(width, text),
    "print": lambda *values: "".join(_printed(value, "print") for value in values),
    "printf": _format,
    "quote": _quote,
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "replace": lambda old, new, text: text.replace(old, new),
    "required": _required,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "ternary": lambda yes, no, test: yes if test else no,
    "toYaml": _yaml,
    "trim": str.strip,
    "trimSuffix": lambda end, text: text.removesuffix(end),
    "trunc": lambda length, text: text[:length],
}
merged = _merge
