"""Whatever a program writes, it becomes whole lines of a bounded length and number."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from lmcache_devkit.fake_clock import FakeClock
from lmcache_sidecar.output_log import LINE_BYTES_MAX, LINES_AT_ONCE, LINES_PER_SECOND, OutputLog


def test_lines_come_whole_whatever_pieces_they_are_read_in() -> None:
    lines: list[str] = []
    log = OutputLog(lines.append)
    for piece in (b"one\ntw", b"o\r\n\n  \nthr", b"ee"):
        log.feed(piece)
    assert lines == ["one", "two"]
    log.end()
    assert lines == ["one", "two", "three"]


def test_no_line_can_look_like_another_one_or_move_the_cursor() -> None:
    lines: list[str] = []
    log = OutputLog(lines.append)
    log.feed("\x1b[2Ja\rb\u2028c\x00d \xe4\n".encode() + b"\xff\n")
    assert lines == ["\\x1b[2Ja\\rb\\u2028c\\x00d \xe4", "\ufffd"]


def test_a_long_line_is_cut_and_the_next_one_is_not() -> None:
    lines: list[str] = []
    log = OutputLog(lines.append)
    for _ in range(5):
        log.feed(b"x" * (LINE_BYTES_MAX // 2))
    log.feed(b"\nnext\n")
    assert lines == ["x" * LINE_BYTES_MAX + " ... (cut)", "next"]


def test_more_lines_than_are_allowed_are_counted_and_said() -> None:
    clock, lines = FakeClock(), list[str]()
    log = OutputLog(lines.append, clock.monotonic)
    log.feed(b"line\n" * 1000)
    assert len(lines) == LINES_AT_ONCE
    assert log.dropped_lines == 1000 - LINES_AT_ONCE
    clock.advance(1.0)
    log.feed(b"again\n")
    assert lines[-2:] == [
        f"({log.dropped_lines} lines were left out: more than {LINES_PER_SECOND:.0f} per second)",
        "again",
    ]
    log.feed(b"line\n" * 1000 + b"why it ended")
    log.end()
    assert lines[-2].startswith("(982 lines were left out")
    assert lines[-1] == "why it ended"


@given(st.lists(st.binary(max_size=60), max_size=30))
@example([b"\x1c"])  # blank as text, and not as bytes
def test_nothing_that_is_read_breaks_it(pieces: list[bytes]) -> None:
    lines: list[str] = []
    log = OutputLog(lines.append, FakeClock().monotonic)
    for piece in pieces:
        log.feed(piece)
    log.end()
    assert all(line.isprintable() and line for line in lines)
    assert len(lines) + log.dropped_lines <= 1 + b"".join(pieces).count(b"\n")


def test_lines_that_are_left_out_at_once_are_counted_as_if_one_by_one() -> None:
    data = b"line\n \n\n" * 1000 + b"end"
    together, apart = (
        OutputLog(lambda line: None, FakeClock().monotonic),
        OutputLog(lambda line: None, FakeClock().monotonic),
    )
    together.feed(data)
    for number in range(len(data)):
        apart.feed(data[number : number + 1])
    together.end()
    apart.end()
    assert together.dropped_lines == apart.dropped_lines == 1001 - LINES_AT_ONCE
