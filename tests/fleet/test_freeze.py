"""A coordinator may have a server refuse stores while it reads everything, and the server sees to it that this ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmcache_devkit import FakeClock
from lmcache_fleet_member.freezing import Freezes
from tests.fleet.recovery_machine import Connection, Fate, Server, SharedBackend, Site


class Control:
    def __init__(self) -> None:
        self.seconds: float | None = 0.0

    def begin(self, seconds: float | None, holder: str = "", /) -> None:
        self.seconds = seconds

    def end(self, holder: str = "", /) -> None:
        self.seconds = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


def test_it_is_as_long_as_replies_ask_for_it_and_bounded(clock: FakeClock) -> None:
    control = Control()
    freezes = Freezes(lambda: control, 30.0)
    freezes.asked("a", 3600.0)
    assert control.seconds == 30.0
    clock.advance(20.0)
    freezes.asked("a", 3600.0)
    assert control.seconds == 30.0, "a command that comes again does not make it longer"
    freezes.asked("a", 0.0)
    assert control.seconds == 0.0
    freezes.asked("a", 5.0)
    assert control.seconds == 5.0


def test_one_coordinator_does_not_end_the_freeze_of_another(clock: FakeClock) -> None:
    control = Control()
    freezes = Freezes(lambda: control, 30.0)
    freezes.asked("a", 10.0)
    freezes.asked("b", 20.0)
    assert control.seconds == 20.0
    freezes.asked("b", 0.0)
    assert control.seconds == 10.0
    freezes.asked("a", 0.0)
    assert control.seconds == 0.0


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(0, 1, SharedBackend(), 1000, lambda: None)
    yield server
    server.end()


@pytest.mark.parametrize("mode", ["live", "freeze"])
def test_a_full_sync_freezes_where_it_is_to(mode: str, server: Server) -> None:
    site = Site(sync_mode=mode)
    seen = []
    fates: list[Fate] = []

    def while_asked() -> None:
        seen.append(server.is_frozen)

    link = server.links[0]
    link._http = Connection(site, fates, while_asked)  # type: ignore[assignment]
    server.store(0, [1, 2, 3])
    link.step()
    assert any(seen) == (mode == "freeze")
    assert not server.is_frozen, "the snapshot is there"
    assert site.coordinator.placements.counts()
    # A coordinator that starts again reads everything again; when it dies in the middle, the server's bound ends the freeze.
    site.start()
    fates[:] = [Fate.ARRIVES, Fate.ARRIVES, Fate.ARRIVES, Fate.LOST]
    for _ in range(2):
        link.step()
    assert server.is_frozen == (mode == "freeze")
