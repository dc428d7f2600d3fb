"""Columns for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, columns aligned to the left and two spaces apart.  What would move a terminal's cursor is
    written as an escape: some cells hold names that others chose."""
    shown = [[cell if cell.isprintable() else repr(cell)[1:-1] for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
