"""Every relative link of the documentation leads to a file, and to a heading of it where it names one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("*.md"),
        *ROOT.glob("deploy/**/README.md"),
        *(page for folder in ("core", "libs/*", "plugins/*", "engines/*") for page in ROOT.glob(f"{folder}/README.md")),
    ]
)
_FENCED: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_CODE: Final = re.compile(r"`[^`\n]+`")
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)


def links_of(page: Path) -> list[str]:
    text = _CODE.sub("", _FENCED.sub("", page.read_text()))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors_of(page: Path) -> set[str]:
    """The ids that headings get, in mkdocs as on GitHub."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text())):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()).replace(
            " ", "-"
        )
        found.add(slug)
    return found


def broken(page: Path) -> list[str]:
    wrong = []
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-heading-with-code) [c](gone.md) [d](there.md#gone) `[e](f.md)`\n"
        "```\n[g](h.md)\n```\n[i](https://example.org/gone)\n"
    )
    assert broken(page) == ["gone.md", "there.md#gone"]
