"""How a setting is described next to its type: what keys.py makes a Setting of.

Rule 1: only the description stands here; what it leads to is in keys.py.
"""

from collections.abc import Callable

from msgspec import Meta


def about(
    meaning: str,
    *,
    flag: str = "",
    letter: str = "",
    variable: str = "",
    word: str = "",
    parse: Callable[[str], object] | None = None,
    split: Callable[[str], list[str]] | None = None,
) -> Meta:
    """Describe a setting: what it means (Markdown), a short flag where people type it, how one value is read.

    `letter` is one more flag (`-k`), `variable` the one that dcgm-exporter reads (DCGM_EXPORTER_KUBERNETES). `word`
    stands for the value in the help of the flag. `parse` is for values that are more than a number or a word, `split`
    for lists that are not simply split at each comma.
    """
    extra = {"flag": flag, "letter": letter, "variable": variable, "word": word, "parse": parse, "split": split}
    return Meta(description=meaning, extra=extra)
