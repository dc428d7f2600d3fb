"""Draws a page on a terminal, with rich: colours where the terminal has them and NO_COLOR is not set, columns that fit
into its width (COLUMNS, or what the terminal says)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lmcache_core.app.console.command_output import printable
from lmcache_tools.page import Bar, Cell, Line, Page, Table, bar_cells

_COLOURS: Final = ("green", "cyan", "red", "yellow")
_BAR_CELLS_MIN, _BAR_CELLS_MAX = 10, 60
_BAR_SHARE: Final = 3
_GAP: Final = 2
_WRAPPED_MIN: Final = 24
"""A column narrower than that is not worth wrapping a text in."""
_NUMBER: Final = frozenset("0123456789.,-+%~<>")


def draw_page(page: Page, stream: TextIO) -> None:
    """Texts are never read as markup, and what would move the cursor is written as an escape."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False, force_terminal=True)
    for block in page:
        match block:
            case Line(text, mood):
                console.print(Text(printable(text), style=mood))
            case Table():
                console.print(*_table(block, console.width), sep="\n")
            case Bar():
                console.print(_bar(block, console.width))


def _table(table: Table, width: int) -> Iterator[RichTable | Text]:
    """Columns, of which the last may be wrapped; where they do not fit, one line for each cell, row by row."""
    *columns, last = (
        max(len(printable(_text(row[index]))) for row in (table.head, *table.rows)) for index in range(len(table.head))
    )
    if sum(columns) + _GAP * len(columns) + min(last, _WRAPPED_MIN) > width:
        yield from _records(table)
        return
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(table.head):
        is_last = index == len(columns)
        numbers = _are_numbers([row[index] for row in table.rows])
        drawn.add_column(
            Text(name),
            justify="right" if numbers else "left",
            overflow="fold",
            min_width=1 if is_last else columns[index],
        )
    for row in table.rows:
        drawn.add_row(*map(_drawn, row))
    yield drawn


def _records(table: Table) -> Iterator[Text]:
    indent = max(map(len, table.head))
    for row in table.rows:
        for name, cell in zip(table.head, row, strict=True):
            yield Text.assemble((f"{name:<{indent}}  ", "bold"), _drawn(cell))
        yield Text()


def _bar(bar: Bar, width: int) -> Text:
    cells = max(_BAR_CELLS_MIN, min(_BAR_CELLS_MAX, width // _BAR_SHARE))
    taken = bar_cells(bar, cells)
    drawn = Text(f"{printable(bar.name)}  ")
    for index, own in enumerate(taken):
        drawn.append("\u2588" * own, style=_COLOURS[index % len(_COLOURS)])
    drawn.append("\u2591" * (cells - sum(taken)), style="dim")
    drawn.append(f"  {printable(bar.text)}")
    return drawn


def _are_numbers(cells: Sequence[Cell]) -> bool:
    words = [_text(cell).split(" ")[0] for cell in cells]
    return any(word != "-" for word in words) and all(word and _NUMBER.issuperset(word) for word in words)


def _drawn(cell: Cell) -> Text:
    return Text(printable(_text(cell)), style=cell.mood if isinstance(cell, Line) else "")


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Line) else cell
