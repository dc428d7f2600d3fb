"""Pages use the field's own words (CONTRIBUTING.md, "Words")."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
REPLACED: Final = re.compile(
    r"\b(nobody|whoever|somebody|everybody|(?:is|are|be|was|were) told|stands?|so many|laws?|strangers?|the kit|lets? go"
    r"|given up|gives? up|lent|cannot be had|twins?|mends?|obstacles?|departures|tally|tallies|census|condemned?)\b",
    re.IGNORECASE,
)
WRITTEN: Final = [
    page
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if not re.search(r"<!-- Generated|^Written by `python", page.read_text(), re.MULTILINE)
]
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FIELDS: Final = re.compile(r"<!-- (?:Fields|routes).*?<!-- (?:End|end) of", re.DOTALL)


def prose(text: str) -> str:
    """Without code, targets of links, and what follows from code."""
    for part in (_FENCED, _FIELDS, re.compile(r"`[^`]*`"), re.compile(r"\]\([^)]*\)")):
        text = part.sub(" ", text)
    return text


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_word_that_was_replaced(page: Path) -> None:
    text = prose(page.read_text())
    assert [text[max(0, found.start() - 40) : found.end() + 20] for found in REPLACED.finditer(text)] == []


def test_a_replaced_word_is_found_in_prose_alone() -> None:
    assert REPLACED.search(prose("Nobody is told."))
    assert not REPLACED.search(prose("`nobody` [words](the-kit.md)\n```\nwhoever\n```\n"))
