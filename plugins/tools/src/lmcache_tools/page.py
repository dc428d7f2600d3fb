"""What a command shows people: lines, tables and bars, as values that say nothing of how they are drawn.

`plain_page` makes plain text of them, and `terminal_page.draw_page` draws them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from lmcache_core.app.console.command_output import printable, text_table

_BAR_CELLS: Final = 30
_FILLS: Final = "#=+~"
_REST: Final = "."


class Mood(StrEnum):
    """What a text means for the reader; on a terminal, its colour."""

    PLAIN = ""
    HEADING = "bold"
    GOOD = "green"
    DOUBTFUL = "yellow"
    BAD = "bold red"
    QUIET = "dim"


class Line(NamedTuple):
    """One line of text.  Long ones are wrapped by a terminal, at words."""

    text: str = ""
    mood: Mood = Mood.PLAIN


Cell = str | Line


class Table(NamedTuple):
    """Rows under a head, all of them as long as it.  A column of numbers is aligned to the right on a terminal."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Bar(NamedTuple):
    """Parts of a whole, beside its name; what they leave is empty.  All are of one unit, and not negative."""

    name: str
    parts: Sequence[tuple[str, float]]
    whole: float
    text: str
    """Behind the bar, in words."""


Block = Line | Table | Bar
Page = Sequence[Block]


def plain_page(page: Page) -> Iterator[str]:
    """Lines without colour, as wide as they need to be: what pipes, files and programs get."""
    for block in page:
        match block:
            case Line(text):
                yield printable(text)
            case Table(head, rows):
                cells = [[cell.text if isinstance(cell, Line) else cell for cell in row] for row in rows]
                yield from text_table([list(head), *cells])
            case Bar(name, _, _, text):
                drawn = "".join(_FILLS[index % len(_FILLS)] * cells for index, cells in enumerate(bar_cells(block)))
                yield f"{printable(name)}  [{drawn:{_REST}<{_BAR_CELLS}}]  {printable(text)}"


def bar_cells(bar: Bar, cells: int = _BAR_CELLS) -> list[int]:
    """How many of `cells` cells each part takes: a part that is not empty has at least one, and together they fit."""
    left, taken = cells, []
    for _, size in bar.parts:
        share = min(1.0, size / bar.whole) if bar.whole > 0 else 0.0
        own = min(left, max(round(share * cells), 1 if size > 0 else 0))
        taken.append(own)
        left -= own
    return taken
