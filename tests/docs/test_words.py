"""Pages, source and tests use the field's own words (CONTRIBUTING.md, "Words")."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
_WORDS: Final = (
    r"nobody|whoever|somebody|everybody|so many|laws?|strangers?|the kit|lets? go|lent|cannot be had|twins?|mends?|mended"
    r"|obstacles?|departures|tally|tallies|census|condemned?"
)
REPLACED: Final = re.compile(rf"\b({_WORDS}|(?:is|are|be|was|were) told|stands?|given up|gives? up)\b", re.IGNORECASE)
IN_CODE: Final = re.compile(
    rf"(?<![a-z])({_WORDS}|told|stands?(?![ -]ins?\b)|(?<!there )(?:is|are) no (?!longer|more|less|larger)[a-z]+)(?![a-z])",
    re.IGNORECASE,
)
ALLOWED: Final = {
    "benchmarks/l2_soak": {"tally", "tallies"},  # a field of results that are kept
    "benchmarks/policy_traces": {"law"},  # Zipf's
    "benchmarks/soak": {"tally"},
    "core/src/lmcache_core/server/peers.py": {"nobody"},  # the user of Linux
    "core/tests/server/test_engine_users.py": {"nobody"},
    "tests/benchmarks": {"tally"},
    "tests/l2_recipes": {"tally"},
}
"""Words of IN_CODE that files have for a reason, by the beginning of their paths."""
PAGES: Final = (
    "*.md",
    "docs/**/*.md",
    "changelog/*.md",
    *(f"{folder}/README.md" for folder in ("core", "deploy", "libs/*", "plugins/*", "engines/*")),
)
TABLES: Final = ("CONTRIBUTING.md", "changelog/words.changed.md")
"""These have the replaced words beside those that replace them."""
WRITTEN: Final = [
    page
    for pattern in PAGES
    for page in sorted(ROOT.glob(pattern))
    if str(page.relative_to(ROOT)) not in TABLES
    and not re.search(r"<!-- Generated|^Written by `python", page.read_text(), re.MULTILINE)
]
FOLDERS: Final = sorted(
    [path.parent for pattern in ("core", "*/*") for path in ROOT.glob(f"{pattern}/pyproject.toml")]
    + [ROOT / name for name in ("benchmarks", "demo", "scripts", "tests")]
)
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_FIELDS: Final = re.compile(r"<!-- (?:Fields|routes).*?<!-- (?:End|end) of", re.DOTALL)


def prose(text: str) -> str:
    """Without code, targets of links, and what follows from code."""
    for part in (_FENCED, _FIELDS, re.compile(r"`[^`]*`"), re.compile(r"\]\([^)]*\)")):
        text = part.sub(" ", text)
    return text


def words_of(code: str) -> str:
    """Names, strings, comments and docstrings as one line of words."""
    return re.sub(r"(?:[\s#_]|//)+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", code))


def found_in(file: Path) -> list[str]:
    name = str(file.relative_to(ROOT))
    allowed = set().union(*(words for start, words in ALLOWED.items() if name.startswith(start)))
    text = words_of(file.read_text())
    return [
        f"{name}: {text[max(0, found.start() - 40) : found.end() + 20]}"
        for found in IN_CODE.finditer(text)
        if found[1].lower() not in allowed
    ]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_word_that_was_replaced(page: Path) -> None:
    text = prose(page.read_text())
    assert [text[max(0, found.start() - 40) : found.end() + 20] for found in REPLACED.finditer(text)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_source_and_tests_have_no_word_that_was_replaced(folder: Path) -> None:
    files = [file for ending in ("py", "pyi", "template", "cpp", "h") for file in sorted(folder.rglob(f"*.{ending}"))]
    files = [
        file
        for file in files
        if file != Path(__file__) and not {"third_party", "build"} & {*file.relative_to(ROOT).parts}
    ]
    assert [line for file in files for line in found_in(file)] == []


def test_a_replaced_word_is_found_in_prose_alone() -> None:
    assert REPLACED.search(prose("Nobody is told."))
    assert not REPLACED.search(prose("`nobody` [words](the-kit.md)\n```\nwhoever\n```\n"))


@pytest.mark.parametrize(
    "code", ["def is_told(): ...", "class StoreTally: ...", '"""This is\n    no key."""', "# so\n# many"]
)
def test_a_replaced_word_is_found_in_names_and_across_lines(code: str) -> None:
    assert IN_CODE.search(words_of(code))


@pytest.mark.parametrize("code", ["there is no key", "stand_ins = 1", "it is no longer open", "flaws, plaintwin"])
def test_what_reads_well_is_no_such_word(code: str) -> None:
    assert not IN_CODE.search(words_of(code))
