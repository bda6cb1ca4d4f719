"""Links of the documentation: what they lead to is there, and so is its heading.

Rule 1: Markdown is read by the library that `rich` reads it with; headings get the anchors that GitHub gives them.
Rule 2: what is written of a file elsewhere (a comment, a message of the program) counts as a link too.
Rule 3: other sites are not asked: a test must not depend on them.
"""

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import ROOT

PAGES = sorted(
    path
    for folder in (ROOT, *(ROOT / name for name in ("docs", "deploy", "examples")))
    for path in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)
# A file of these folders as it is named in a comment or a text: `docs/otlp.md#events`.
_NAMED = re.compile(r"(?<![\w./-])((?:docs|deploy|examples)/[\w./-]*\w\.(?:md|py|ya?ml|sh|json|csv))(#[\w-]+)?")
_READ = {".py", ".md", ".yaml", ".yml", ".toml", ".sh", ".service", ".conf", ".tpl", ".txt", ""}


def tokens(text: str) -> list[Token]:
    """Read a page, each inline element after the block that it stands in."""
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in blocks for token in (block, *(block.children or ()))]


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead."""
    found = (token.attrs.get("href", token.attrs.get("src")) for token in tokens(text))
    return [str(target) for target in found if target]


def anchors(text: str) -> set[str]:
    """The anchors of a page: of its headings, numbered where two are equal, and those that it names itself."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    taken: dict[str, int] = {}
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    for opened, inline in itertools.pairwise(blocks):
        if opened.type == "heading_open":
            shown = "".join(token.content for token in inline.children or () if token.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
            count = taken[slug] = taken.get(slug, -1) + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """The anchors of a file; of one that is no Markdown there are none."""
    return frozenset(anchors(path.read_text()) if path.suffix == ".md" else ())


def wrong(page: Path, target: str) -> str | None:
    """What is wrong with a link of a page, if anything."""
    if re.match(r"[a-z]+:", target):
        return None if target.startswith("https://") else f"{target}: not over https"
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return f"{target}: there is no such file"
    if anchor and anchor not in anchors_of(path):
        return f"{target}: {path.name} has no such heading; it has {', '.join(sorted(anchors_of(path)))}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A reader who follows a link to nothing trusts the rest no more."""
    found = [problem for target in links(page.read_text()) if (problem := wrong(page, target))]

    assert found == []


def mentions() -> Iterator[tuple[Path, str, str]]:
    """Every file of the documentation, deploy/ and examples/ that some other file names, and a heading of it."""
    folders = [ROOT / name for name in ("otelgpu", "docs", "deploy", "examples", "tests")]
    files = (path for folder in folders for path in folder.rglob("*") if path.suffix in _READ and path.is_file())
    for path in (*files, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "pyproject.toml"):
        for name, anchor in _NAMED.findall(path.read_text(errors="replace")):
            yield path, name, anchor


def test_every_file_that_is_named_is_there() -> None:
    """In comments, manifests and messages, where nobody can click."""
    named = list(mentions())
    found = {
        f"{path.relative_to(ROOT)}: {bad}" for path, *target in named if (bad := wrong(ROOT / "x", "".join(target)))
    }

    assert len(named) > 50
    assert found == set()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[a](otlp.md#events)", False),
        ("[a](otlp.md#event)", True),
        ("[a](#links-of-it)\n\n## Links of `it`", False),
        ("[a](#again-1)\n\n# Again\n\n# Again", False),
        ("[a](#again-2)\n\n# Again\n\n# Again", True),
        ("[a](missing.md)", True),
        ("[a][b]\n\n[b]: missing.md", True),
        ("![a](missing.png)", True),
        ("| a |\n|---|\n| [a](missing.md) |", True),
        ("`[a](missing.md)`\n\n```\n[a](missing.md)\n```", False),
        ("[a](../../outside.md)", True),
        ("[a](http://example.com)", True),
        ("[a](https://example.com)", False),
    ],
)
def test_a_broken_link_is_found(text: str, *, missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every form that Markdown has for it, and in none that is code."""
    monkeypatch.setattr("tests.test_links.ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "otlp.md").write_text("# Push\n\n## Events\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text(text)

    assert bool([problem for target in links(text) if (problem := wrong(page, target))]) is missing
