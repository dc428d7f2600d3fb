"""Reads code out of pages."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return [text for kind, text in _BLOCK.findall((DOCS / page).read_text()) if kind == language]
