"""Whatever is done, and wherever the process dies: what was answered is what the next process finds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from itertools import chain, repeat
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.object_slots.tests.simulated import (
    OBJECT_BYTES,
    Disk,
    DiskMedium,
    KilledError,
    Objects,
    geometry_of,
    in_this_thread,
    volume_on,
)
from lmcache_core import ObjectHeader, Outcome, check, inspect
from lmcache_object_slots.recovery import Recovery
from lmcache_object_slots.slot_keeper import BLANK, SlotKeeper
from lmcache_object_slots.slot_state import SlotState
from lmcache_object_slots.volume_keeper import VolumeKeeper

SLOTS = 5
NUMBERS = range(7)
OBJECTS = Objects(len(NUMBERS))

numbers = st.sampled_from(NUMBERS)
deaths = st.sampled_from([None] * 6 + list(range(8)))
faults = st.sampled_from([None] * 6 + list(range(4)))
shares = st.sampled_from([0.0, 0.1, 0.5, 0.99, 1.0])
delays = st.lists(st.integers(0, 4), max_size=40)


class Process:
    """One life of the adapter's insides, without its threads."""

    def __init__(self, disk: Disk, waits: list[int], neighbours: int) -> None:
        self.volume = volume_on(disk)
        self.index, exact = self.volume.index(verify=False)
        self.volume_keeper = VolumeKeeper(self.volume, self.index, in_this_thread, exact=exact)
        medium = DiskMedium(disk, chain(waits, repeat(1)), neighbours)
        self.keeper = SlotKeeper(medium, self.index, self.volume_keeper.begin_changes)
        self.recovered = exact
        if exact:
            self.keeper.gone = None

    async def recover(self) -> None:
        log = logging.getLogger("tests")
        swept_to = self.volume_keeper.swept_to
        await Recovery(self.keeper, self.volume.swept, self.volume.wipes, swept_to, log, "slots").run()
        self.recovered = True
        self.keeper.gone = None
        self.index.settle()


class Crashes(RuleBasedStateMachine):
    """`sure` is there, `maybe` may be: what was under way when the process died."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk(geometry_of(SLOTS))
        self.sure: set[int] = set()
        self.maybe: set[int] = set()
        self.process: Process | None = None
        self.loop = asyncio.Runner()

    def teardown(self) -> None:
        self.loop.close()

    # --- life and death

    @initialize(waits=delays, neighbours=st.sampled_from([1, 3]), some=st.lists(numbers, unique=True))
    def first_start(self, waits: list[int], neighbours: int, some: list[int]) -> None:
        self.start(waits, neighbours, recovers=True)
        self.run(self._store_all(some))

    def run(
        self, work: Coroutine[Any, Any, Any], death: int | None = None, share: float = 0.5, fault: int | None = None
    ) -> None:
        self.disk.writes_left, self.disk.torn_share, self.disk.fault_in = death, share, fault
        try:
            self.loop.run(work)
        except KilledError:
            self.process = None
        except OSError:
            pass  # an outcome
        self.disk.writes_left = self.disk.fault_in = None

    @precondition(lambda self: self.process is None)
    @rule(waits=delays, neighbours=st.sampled_from([1, 3]), recovers=st.booleans())
    def start(self, waits: list[int], neighbours: int, recovers: bool) -> None:
        self.disk.revive()
        self.process = Process(self.disk, waits, neighbours)
        if recovers:
            self.run(self.process.recover())

    @precondition(lambda self: self.process is not None)
    @rule()
    def kill(self) -> None:
        self.process = None

    @precondition(lambda self: self.process is not None and self.process.recovered)
    @rule(death=deaths, share=shares)
    def stop(self, death: int | None, share: float) -> None:
        assert self.process is not None
        self.run(self._stop(self.process), death, share)
        self.process = None

    async def _stop(self, process: Process) -> None:
        await process.keeper.empty_soiled()
        await process.volume_keeper.write(last=True)

    # --- what a process does

    @precondition(lambda self: self.process is not None)
    @rule(some=st.lists(numbers, min_size=1, max_size=6, unique=True), death=deaths, share=shares, fault=faults)
    def store(self, some: list[int], death: int | None, share: float, fault: int | None) -> None:
        self.run(self._store_all(some), death, share, fault)

    async def _store_all(self, some: list[int]) -> None:
        for number in some:
            await self._store(number)

    async def _store(self, number: int) -> None:
        process = self.process
        assert process is not None
        key = OBJECTS.key(number)
        if await process.keeper.sure_place(key) is not None:
            return
        self.maybe.add(number)
        if await process.keeper.put(key.object_id, OBJECTS[number]):
            self.sure.add(number)
        elif number not in self.sure:
            pass

    @precondition(lambda self: self.process is not None)
    @rule(which=st.integers(0, 6), death=deaths, share=shares, fault=faults)
    def delete(self, which: int, death: int | None, share: float, fault: int | None) -> None:
        known = sorted(self.sure or self.maybe or NUMBERS)
        self.run(self._delete(known[which % len(known)]), death, share, fault)

    async def _delete(self, number: int) -> None:
        process = self.process
        assert process is not None
        if number in self.sure:
            self.sure.discard(number)
            self.maybe.add(number)
        await process.keeper.sure_place(OBJECTS.key(number))
        deleted = await process.keeper.remove(OBJECTS.key(number).object_id)
        if deleted and process.recovered:
            self.maybe.discard(number)

    @precondition(lambda self: self.process is not None)
    @rule(death=deaths, share=shares)
    def checkpoint(self, death: int | None, share: float) -> None:
        assert self.process is not None
        self.run(self.process.volume_keeper.write(), death, share)

    @precondition(lambda self: self.process is not None and not self.process.recovered)
    @rule(
        work=st.lists(st.tuples(st.booleans(), numbers), max_size=4, unique_by=lambda one: one[1]),
        death=deaths,
        share=shares,
    )
    def recover(self, work: list[tuple[bool, int]], death: int | None, share: float) -> None:
        """And store and delete meanwhile."""
        assert self.process is not None
        self.run(self._recover(self.process, work), death, share)

    async def _recover(self, process: Process, work: list[tuple[bool, int]]) -> None:
        others = [self._store(number) if stores else self._delete(number) for stores, number in work]
        done = await asyncio.gather(process.recover(), *others, return_exceptions=True)
        for error in done:
            if error is not None:
                raise error
        gone = {number for stores, number in work if not stores}
        self.maybe -= gone - self.sure

    # --- what holds

    @invariant()
    def what_was_answered_is_on_the_medium(self) -> None:
        standing = self._on_the_medium()
        assert self.sure <= standing <= self.sure | self.maybe

    @invariant()
    def after_recovery_index_and_medium_are_one(self) -> None:
        process = self.process
        if process is None or not process.recovered:
            return
        index = process.index
        for slot in range(SLOTS):
            page = self.disk.page(slot)
            header = inspect(page)
            match index.state(slot):
                case SlotState.FREE:
                    assert page == BLANK
                case SlotState.HELD:
                    assert isinstance(header, ObjectHeader)
                    place = index.find(header.key.object_id)
                    assert place is not None
                    assert place.slot == slot
                case state:
                    assert state in (SlotState.SOILED, SlotState.DOUBTED), "what failed to be written, or to be deleted"
        known = {number for number in NUMBERS if index.find(OBJECTS.key(number).object_id)}
        assert self.sure <= known <= self.sure | self.maybe
        assert index.totals() == (len(known) * OBJECT_BYTES, len(known))

    @invariant()
    def no_header_is_before_bytes_that_are_not_its_own(self) -> None:
        for slot in range(SLOTS):
            header = inspect(self.disk.page(slot))
            if isinstance(header, ObjectHeader):
                at = self.disk.geometry.run_at(slot)
                assert check(bytes(self.disk.bytes[at : at + OBJECT_BYTES]), header.key).outcome is Outcome.DONE

    def _on_the_medium(self) -> set[int]:
        headers = [inspect(self.disk.page(slot)) for slot in range(SLOTS)]
        found = {header.key.object_id for header in headers if isinstance(header, ObjectHeader)}
        return {number for number in NUMBERS if OBJECTS.key(number).object_id in found}


Crashes.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCrashes = Crashes.TestCase
