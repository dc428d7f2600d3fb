"""Parts of a plane that stay in a core's own cache while several passes go over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

TILE_ELEMENTS: Final = 32 * 1024
"""128 KiB of single precision, and as much of temporaries beside them."""
_COLUMNS: Final = 1024


def tiles(rows: int, columns: int, rows_each: int = 0) -> Iterator[tuple[slice, slice]]:
    """Covers `rows` x `columns`; `rows_each` rows at a time where that is given (a group that has a scale of its own)."""
    width = min(columns, max(TILE_ELEMENTS // rows_each, 1) if rows_each else _COLUMNS)
    height = rows_each or max(TILE_ELEMENTS // width, 1)
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, min(row + height, rows)), slice(column, min(column + width, columns))
