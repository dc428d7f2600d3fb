"""A server that drops all the time says so now and then, and nothing is left out of the sums."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.builtin.sum_log import KINDS_MAX, PERIOD_SECONDS, Kind, SumLog
from lmcache_devkit.fake_clock import FakeClock


class Lines:
    def __init__(self) -> None:
        self.said: list[tuple[Kind, list[int]]] = []

    def write(self, kind: Kind, amounts: Sequence[int]) -> None:
        self.said.append((kind, list(amounts)))

    def take(self) -> list[tuple[Kind, list[int]]]:
        said, self.said = self.said, []
        return said


def test_the_first_is_said_at_once_and_the_others_together() -> None:
    clock, lines = FakeClock(), Lines()
    log = SumLog(lines.write, clock.monotonic)
    for _ in range(100):
        log.note(("fs", "backlog_bytes"), 2, 20)
    log.note(("", "controller_behind"), 1, 10)
    assert lines.take() == [(("fs", "backlog_bytes"), [2, 20]), (("", "controller_behind"), [1, 10])]
    clock.advance(PERIOD_SECONDS)
    log.note(("fs", "backlog_bytes"), 1, 10)
    log.note(("fs", "backlog_bytes"), 5, 50)
    assert lines.take() == [(("fs", "backlog_bytes"), [199, 1990])]
    log.flush()
    log.flush()
    assert lines.take() == [(("fs", "backlog_bytes"), [5, 50])]


def test_what_is_due_is_said_although_nothing_of_its_kind_comes() -> None:
    clock, lines = FakeClock(), Lines()
    log = SumLog(lines.write, clock.monotonic)
    log.note(("a",), 1)
    log.note(("a",), 2)
    log.write_due()
    assert lines.take() == [(("a",), [1])]
    clock.advance(PERIOD_SECONDS)
    log.write_due()
    log.write_due()
    assert lines.take() == [(("a",), [2])]


def test_the_first_of_a_storm_waits_for_the_others() -> None:
    clock, lines = FakeClock(), Lines()
    log = SumLog(lines.write, clock.monotonic, wait_seconds=4.0)
    for _ in range(2):
        log.note(("a",), 1)
        clock.advance(3.9)
        log.note(("a",), 2)
        log.write_due()
        assert lines.take() == []
        clock.advance(0.1)
        log.write_due()
        assert lines.take() == [(("a",), [3])]
        clock.advance(100 * PERIOD_SECONDS)


def test_more_kinds_than_are_kept_lose_nothing() -> None:
    lines = Lines()
    log = SumLog(lines.write, FakeClock().monotonic)
    for turn in range(2):
        for number in range(KINDS_MAX + 1):
            log.note((f"adapter-{number}",), 1 + turn, 10)
    log.flush()
    assert sum(amounts[0] for _, amounts in lines.said) == 3 * (KINDS_MAX + 1)
