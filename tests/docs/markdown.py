"""Reads code out of pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return [text for kind, text in _BLOCK.findall((DOCS / page).read_text()) if kind == language]


def commands(block: str) -> list[list[str]]:
    """The words of each command in a block of shell: one for each line, unless a quotation or a backslash goes on."""
    lexer = shlex.shlex(block.replace("\\\n", " "), posix=True, punctuation_chars="\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word.strip("\n"):
            found[-1].append(word)
        else:
            found.append([])
    return [words for words in found if words]
