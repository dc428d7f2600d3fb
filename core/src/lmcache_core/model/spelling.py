"""What a misspelt word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like `word`, if any is like it."""
    cutoff = 0.6 if len(word) > 3 else 0.5  # one letter of a short word is much of it
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), None)


def mistyped(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` is with a letter too many, too few, changed, or in the wrong order; with two of these where
    it is longer than five letters.  For names that users choose: one that is only similar belongs to another user."""
    guess = nearest(word, known)
    return guess if guess is not None and _edits(word, guess) <= (2 if len(word) > 5 else 1) else None


def _edits(word: str, other: str) -> int:
    """Letters to add, remove, change or swap with their neighbours to get from one to the other."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (other[j - 2], wanted):
                row[j] = min(row[j], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]
