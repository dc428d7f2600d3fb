"""Documents of a prompt, where a separator of the user's says how they are cut."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def split_segments(tokens: Sequence[int], separator: Sequence[int]) -> list[range]:
    """What lies between separators, from the first token to the last: positions, none of them empty. Separators are found from
    left to right, do not overlap, and belong to no segment. Raises ValueError for an empty separator, and OverflowError for a
    token that does not fit 64 bits."""
    if not separator:
        raise ValueError("a separator has at least one token")
    words, wanted, size = array("q", tokens).tobytes(), array("q", separator).tobytes(), 8
    found: list[range] = []
    start = at = 0
    while at >= 0:
        at = words.find(wanted, at)
        if at % size and at >= 0:  # bytes of two tokens that look like it
            at += 1
            continue
        end = at // size if at >= 0 else len(tokens)
        if start < end:
            found.append(range(start, end))
        if at >= 0:
            at += len(wanted)
            start = at // size
    return found
