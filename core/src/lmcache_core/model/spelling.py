"""What a misspelt word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, if any is like it."""
    cutoff = 0.6 if len(word) > 3 else 0.5  # one letter of a short word is much of it
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)
