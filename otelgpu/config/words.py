"""How a setting's text is shown to the user, and what he may have meant.

Rule 1: text that came from outside goes into a message only through here, so that a message stays one short line.
"""

from collections.abc import Callable, Iterable

_SHOWN = 60
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+@%*[]-")


def shown(text: str) -> str:
    """Give back the text in double quotes, cut when long, with everything that is not plain print escaped."""
    inner = one_line(text[:_SHOWN].replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{inner}"' if len(text) <= _SHOWN else f'"{inner}..." ({len(text)} characters)'


def may_hold_password(address: str) -> bool:
    """Whether an address has a part that is a password often enough; a message does not show it then."""
    return "@" in address or "?" in address


def one_line(text: str) -> str:
    """Escape whatever would break the line, move the cursor or not encode; the rest stays as it is."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    # Not the codec "unicode_escape": its first use imports a module, and with no descriptor left that fails.
    return repr(char)[1:-1]


def plain(text: str) -> str:
    """Give back the text as it stands when nobody can misread it, else as `shown` does."""
    return text if 0 < len(text) <= _SHOWN and _PLAIN.issuperset(text) else shown(text)


def whole(path: str) -> str:
    """Give back a path in full, so that it can be copied, unless somebody could misread it."""
    return path if path and _PLAIN.issuperset(path) else shown(path)


class UnknownWordError(ValueError):
    """A word is none of the known ones. Which one was meant takes milliseconds to find: that is done when it is shown.

    *sentence* says what is wrong, *near* finds the rest of it, *otherwise* is the rest when nobody looks.
    """

    def __init__(self, sentence: str, near: Callable[[], str], *, otherwise: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.near = near
        self.otherwise = otherwise

    def __str__(self) -> str:
        return self.sentence + self.near()


def one_of(choices: Iterable[str]) -> str:
    """Name the choices: "dcgm or semconv", "debug, info, warning or error"."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def meant(word: str, known: Iterable[str]) -> str:
    """Finish a message about an unknown word: "; did you mean X?", or nothing when no known word is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Name the known word that is most like this one; None when there is none, or the word is no word."""
    if len(word) > _SHOWN:
        return None
    import difflib  # here, because only a mistake needs it

    return next(iter(difflib.get_close_matches(word, known, n=1)), None)
