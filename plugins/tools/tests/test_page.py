"""Pages: as plain text, and drawn on terminals of several widths."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_tools.page import Bar, Line, Mood, Page, Table, bar_cells, plain_page
from lmcache_tools.terminal_page import draw_page

PAGE: Page = [
    Line("not well", Mood.BAD),
    Bar("L1", (("cached", 30.0), ("held", 0.1)), 100.0, "30.1 % of 100 B"),
    Table(
        ("NAME", "STATE", "OBJECTS", "WHAT IS SAID ABOUT IT"),
        [
            ("fs", Line("ok", Mood.GOOD), "1,234", "nothing that anybody would have to know"),
            ("s3-in-another-part-of-the-world", Line("down", Mood.BAD), "5", "no answer for a while " * 3),
        ],
    ),
]
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(page: Page, monkeypatch: pytest.MonkeyPatch, width: int, **environment: str) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    draw_page(page, stream)
    return stream.getvalue()


def test_plain_text_has_neither_colours_nor_limits() -> None:
    lines = list(plain_page(PAGE))
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "not well"
    assert lines[1] == "L1  [#########=....................]  30.1 % of 100 B"
    assert [line.split()[0] for line in lines[2:]] == ["NAME", "fs", "s3-in-another-part-of-the-world"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_is_never_wider_than_it_is(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _ESCAPE.sub("", drawn(PAGE, monkeypatch, width)).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for word in ("s3-in-another-part-of-the-world", "1,234", "OBJECTS", "down"):
        assert word in words


def test_what_does_not_fit_in_columns_is_one_line_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _ESCAPE.sub("", drawn(PAGE, monkeypatch, 60)).splitlines()
    assert any(re.fullmatch(r"STATE +down", line.rstrip()) for line in lines)
    wide = _ESCAPE.sub("", drawn(PAGE, monkeypatch, 200)).splitlines()
    assert any(line.split()[:2] == ["NAME", "STATE"] for line in wide)


def test_colours_are_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31m" in drawn(PAGE, monkeypatch, 80, TERM="xterm-256color")
    plain = drawn(PAGE, monkeypatch, 80, TERM="xterm-256color", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)


@given(st.text(max_size=40))
def test_no_text_is_read_as_markup_or_moves_the_cursor(text: str) -> None:
    stream = io.StringIO()
    draw_page([Line(f"[bold]{text}"), Table(("A", "B"), [(text, f"[red]{text}")])], stream)
    shown = _ESCAPE.sub("", stream.getvalue())
    assert "[bold]" in shown
    assert "\x1b" not in shown
    assert "\r" not in shown
    plain = list(plain_page([Line(text), Table(("A",), [(text,)])]))
    assert len(plain) == 3
    assert all(line.isprintable() for line in plain)


@given(st.lists(st.floats(0, 1e18), max_size=5), st.floats(0, 1e18))
def test_parts_of_a_bar_fit_into_it_and_are_seen(sizes: list[float], whole: float) -> None:
    taken = bar_cells(Bar("b", [("part", size) for size in sizes], whole, ""))
    assert sum(taken) <= 30
    assert all(cells >= 0 for cells in taken)
    assert not sizes or not sizes[0] or taken[0] >= 1


def test_a_table_without_rows_shows_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    page = [Table(("NAME", "SIZE"), [])]
    assert list(plain_page(page)) == ["NAME  SIZE"]
    assert "NAME" in drawn(page, monkeypatch, 60)
