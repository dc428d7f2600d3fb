"""Columns for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, columns aligned to the left and two spaces apart; as `printable`, cell by cell."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def printable(text: str) -> str:
    """The text, or with what would move a terminal's cursor written as an escape: some texts hold names that others
    chose."""
    return text if text.isprintable() else repr(text)[1:-1]
