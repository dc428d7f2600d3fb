"""Contenders for one backend, each stopped wherever it waits, so that a test decides who goes on."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from enum import Enum, auto
from types import coroutine
from typing import Any

from lmcache_core import ResourceError
from lmcache_devkit.fake_clock import FakeClock
from lmcache_object_remote import Ownership, ProcessMark

LEASE = 60.0


class How(Enum):
    WELL = auto()
    FAILS_BEFORE = auto()
    FAILS_AFTER = auto()


class BackendDownError(Exception):
    pass


@dataclass(frozen=True)
class Pause:
    """Where a coroutine waits: for a time, or for a call of the backend to go on."""

    until: float | None = None
    verb: str = ""
    since: float = 0.0
    took_effect: bool = False


@coroutine
def pause(at: Pause) -> Generator[Pause, How, How]:
    return (yield at)


class SteppedRecords:
    """`OwnerRecords` whose calls have their effect when the test says so, and return when it says so again."""

    def __init__(self, clock: FakeClock, *, conditional: bool) -> None:
        self.value: bytes | None = None
        self._clock = clock
        self._conditional = conditional

    async def read(self) -> bytes | None:
        await self._reach("read")
        value = self.value
        await self._leave("read")
        return value

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        await self._reach("write")
        if self._conditional and self.value != replaces:
            await self._leave("write")
            return False
        self.value = data
        await self._leave("write")
        return True

    async def remove(self) -> None:
        await self._reach("remove")
        self.value = None
        await self._leave("remove")

    async def _reach(self, verb: str) -> None:
        if await pause(Pause(verb=verb, since=self._clock.monotonic())) is How.FAILS_BEFORE:
            raise BackendDownError(verb)

    async def _leave(self, verb: str) -> None:
        if await pause(Pause(verb=verb, took_effect=True)) is How.FAILS_AFTER:
            raise BackendDownError(verb)


class Contender:
    """A server that wants the backend: takes, keeps, and starts again where that is refused."""

    def __init__(
        self, number: int, records: SteppedRecords, clock: FakeClock, alive: set[int], *, evidence: bool
    ) -> None:
        self.number = number
        self.alive = True
        self.refusals: list[str] = []
        self._clock = clock
        machine = "machine" if evidence else ""

        async def sleep(seconds: float) -> None:
            await pause(Pause(until=clock.monotonic() + seconds))

        self._sleep = sleep
        self.ownership = Ownership(
            records,
            instance_id=f"server-{number}",
            boot_id=str(number),
            shared=True,
            clock=clock,
            lease_seconds=LEASE,
            conditional=records._conditional,
            sleep=sleep,
            process=ProcessMark(machine, number, 1),
            is_gone=lambda mark: bool(mark.machine) and mark.pid not in alive,
        )
        alive.add(number)
        self._alive = alive
        self._running: Coroutine[Pause, How, Any] = self._run()
        self.at: Pause = self._running.send(None)  # type: ignore[arg-type]

    def step(self, how: How = How.WELL) -> None:
        """Go on from where it waits, if it may."""
        if not self.alive or (self.at.until is not None and self._clock.monotonic() < self.at.until):
            return
        try:
            self.at = self._running.send(how)
        except StopIteration:
            self._end()

    def stop(self) -> None:
        """An orderly stop: cancelled where it is, then `give_up`."""
        self._running.close()
        self._running = self._give_up()
        self.at = self._running.send(None)  # type: ignore[arg-type]

    def kill(self, *, effect: bool) -> None:
        """SIGKILL.  `effect`: what it was just asking of the backend still happens."""
        if effect:
            self.step()
        if self.alive:
            self._running.close()
            self._end()

    def _end(self) -> None:
        self.alive = False
        self._alive.discard(self.number)

    async def _run(self) -> None:
        while True:
            try:
                await self.ownership.take()
                break
            except ResourceError as refusal:
                self.refusals.append(str(refusal))
            except BackendDownError:
                pass
            await self._sleep(1.0)
        await self.ownership.keep()

    async def _give_up(self) -> None:
        try:
            await self.ownership.give_up()
        except BackendDownError:
            pass
