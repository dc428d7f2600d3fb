"""Who is registered, with which layout, and alive."""

from __future__ import annotations

import pytest

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ObjectLayout
from lmcache_core.contracts.events import WorkerLeft, WorkerRegistered
from lmcache_core.contracts.request_module import ObjectGroup, Worker
from lmcache_core.server.registrations import UNKNOWN_IDS_MAX, Registrations
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock

SMALL, LARGE = ObjectLayout(1, 2, 16, 64, "float32"), ObjectLayout(1, 4, 16, 64, "float32")


class Desk(Registrations):
    def __init__(self) -> None:
        self.clock, self.events, self.ended = FakeClock(), EventRecorder(), list[int]()
        self.touching: set[int] = set()
        self.quarantined: dict[int, bool] = {}
        self.connected = {b"one", b"two"}
        super().__init__(self, self.connected.__contains__, 120.0, 3600.0, self.clock, self.events)

    def end_worker(self, worker: int) -> None:
        self.ended.append(worker)

    def quarantine_worker(self, worker: int, ends_reads: bool) -> bool:
        self.quarantined[worker] = ends_reads
        return worker in self.touching

    def hear(self, instance_id: int, seconds: int) -> None:
        """A ping every second."""
        for _ in range(seconds):
            self.pass_time(1)
            self.seen(instance_id, pinged=True)

    def pass_time(self, seconds: int) -> None:
        """With a look at the silent every second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.reap()


def of(*layouts: ObjectLayout) -> tuple[tuple[ObjectGroup, ...], ...]:
    return tuple((ObjectGroup(layout),) for layout in layouts)


def worker(instance_id: int, layout: ObjectLayout = SMALL, shard: int | None = None, world_size: int = 2) -> Worker:
    return Worker(instance_id, "m", world_size, (ObjectGroup(layout),), shard, inline=False)


def test_an_unknown_worker_is_notified_once_and_then_left_alone() -> None:
    desk = Desk()
    assert [desk.seen(7, pinged=True) for _ in range(3)] == [False, True, True]
    desk.register(worker(7))
    assert desk.seen(7, pinged=True)
    desk.unregister(7, "gone")
    assert [desk.seen(7, pinged=True) for _ in range(2)] == [False, True]


def test_unknown_workers_do_not_fill_the_memory() -> None:
    desk = Desk()
    for instance_id in range(2 * UNKNOWN_IDS_MAX):
        desk.seen(instance_id, pinged=True)
    assert not desk.seen(0, pinged=True), "the oldest was forgotten"


def test_registering_again_changes_nothing() -> None:
    desk = Desk()
    first = desk.register(worker(7))
    assert desk.register(worker(7)) is first
    assert len(desk.events.of(WorkerRegistered)) == 1


def test_one_id_cannot_be_two_shapes() -> None:
    desk = Desk()
    desk.register(worker(7))
    with pytest.raises(ProtocolError, match="must unregister first"):
        desk.register(worker(7, LARGE))
    assert desk.find(7).layout == SMALL  # type: ignore[union-attr]


def test_without_a_worker_nothing_can_be_a_hit() -> None:
    assert Desk().groups("m", 2, 0) == ((), False)


def test_an_unknown_shard_may_be_any_layout_a_known_one_must_be_all_of_its_own() -> None:
    desk = Desk()
    first, second = desk.register(worker(1, SMALL)), desk.register(worker(2, LARGE))
    assert desk.groups("m", 2, 0) == (of(SMALL, LARGE), False)
    first.shard = 0
    assert desk.groups("m", 2, 0) == (of(SMALL), True)
    assert desk.groups("m", 2, 1) == (of(SMALL, LARGE), False)
    second.shard = 0
    assert desk.groups("m", 2, 0) == (of(SMALL, LARGE), True)
    assert desk.groups("m", 1, 0) == ((), False)
    assert desk.groups("other", 2, 0) == ((), False)


def test_the_dead_are_found_by_their_silence() -> None:
    desk = Desk()
    first, second = desk.register(worker(1)), desk.register(worker(2))
    desk.seen(1, pinged=True)
    desk.pass_time(121)
    assert desk.ended == [first.token], "the other one never pinged, and has an hour"
    assert desk.find(1) is None
    desk.pass_time(3600)
    assert desk.ended == [first.token, second.token]
    assert [event.reason for event in desk.events.of(WorkerLeft)] == ["silent", "silent"]


def test_traffic_is_a_sign_of_life() -> None:
    desk = Desk()
    desk.register(worker(1))
    desk.seen(1, pinged=True)
    for _ in range(5):
        desk.pass_time(100)
        desk.seen(1, pinged=False)
    assert desk.find(1)


def test_listeners_are_notified_after_the_leases_have_ended() -> None:
    desk = Desk()
    order: list[tuple[str, int]] = []
    desk.on_leave(lambda left: order.append((f"ended={desk.ended}", left.token)))
    token = desk.register(worker(1)).token
    desk.unregister(1, "unregistered")
    desk.unregister(1, "unregistered")
    assert order == [(f"ended=[{token}]", token)]


def test_ending_one_registration_does_not_touch_the_next_of_the_same_id() -> None:
    desk = Desk()
    first = desk.register(worker(1))
    desk.unregister(1, "unregistered")
    second = desk.register(worker(1))
    assert first.token != second.token
    assert desk.ended == [first.token]
    assert not desk.touch(first), "a transfer that began before does not count for the new one"
    assert desk.touch(second)


def test_a_worker_that_speaks_while_the_dead_are_counted_lives() -> None:
    """The reaper looks and drops under one lock; a worker that speaks afterwards gets the answer that it is not registered."""
    desk = Desk()
    one = desk.register(worker(1))
    desk.seen(1, pinged=True)
    desk.pass_time(120)
    assert desk.touch(one)
    desk.pass_time(1)
    assert desk.find(1) is one
    desk.pass_time(120)
    assert not desk.touch(one)
    assert not desk.seen(1, pinged=True), "a touch is not a notification"


def test_time_for_which_the_server_was_frozen_is_not_a_workers_silence() -> None:
    """What workers sent meanwhile is still to be read."""
    desk = Desk()
    lively = desk.register(worker(1))
    desk.seen(1, pinged=True)
    desk.pass_time(100)
    desk.clock.advance(1000)
    desk.pass_time(10)
    assert desk.find(1) is lively
    desk.pass_time(20)
    assert desk.find(1) is None


def test_a_dead_worker_is_dropped_where_every_round_is_late() -> None:
    """A machine under load calls each round as if the process had been stopped before it."""
    desk = Desk()
    desk.register(worker(1))
    desk.seen(1, pinged=True)
    for _ in range(130):
        desk.clock.advance(3)
        desk.reap()
    assert desk.find(1) is None


def silent_worker(desk: Desk, connection: bytes = b"one", fence_seconds: float = 0.0) -> Worker:
    described = worker(1)
    described.connection, described.fence_seconds = connection, fence_seconds
    silent = desk.register(described)
    desk.touching.add(silent.token)
    desk.seen(1, pinged=True)
    return silent


def test_a_silent_worker_that_may_touch_slots_is_ended_with_its_connection() -> None:
    desk = Desk()
    silent = silent_worker(desk)
    left: list[Worker] = []
    desk.on_leave(left.append)
    desk.pass_time(1000)
    assert desk.find(1) is None
    assert (desk.ended, left, desk.quarantined) == ([], [], {silent.token: False})
    desk.connected.remove(b"one")
    desk.pass_time(1)
    desk.pass_time(1)
    assert (desk.ended, left) == ([silent.token], [silent])


def test_the_connection_that_a_worker_speaks_on_counts() -> None:
    """It has connected anew."""
    desk = Desk()
    silent = silent_worker(desk)
    desk.seen(1, pinged=True, connection=b"two")
    desk.connected.remove(b"one")
    desk.pass_time(1000)
    assert desk.ended == []
    desk.connected.remove(b"two")
    desk.pass_time(1)
    assert desk.ended == [silent.token]


def test_a_worker_that_unregisters_touches_nothing_of_its_earlier_registrations() -> None:
    desk = Desk()
    silent = silent_worker(desk)
    desk.pass_time(121)
    again = silent_worker(desk)
    assert desk.ended == []
    desk.unregister(1, "unregistered")
    assert desk.ended == [again.token, silent.token]


def test_what_a_closed_connection_held_ends_when_its_worker_was_heard_steadily() -> None:
    """It may be a new process with the id of a dead one, as in containers, or the same one, in the middle of a copy."""
    desk = Desk()
    closed = silent_worker(desk)
    left: list[Worker] = []
    desk.on_leave(left.append)
    assert silent_worker(desk, b"two") is closed, "while its first connection is open it may be the same process"
    desk.connected.remove(b"two")
    again = silent_worker(desk, b"one")
    assert again is not closed
    assert desk.find(1) is again
    assert len(desk.events.of(WorkerRegistered)) == 2
    assert desk.events.of(WorkerLeft)[0].reason == "closed"
    desk.hear(1, 200)
    desk.pass_time(61)  # frozen meanwhile, perhaps: what was heard before does not count
    desk.hear(1, 239)
    assert (desk.quarantined, desk.ended, left) == ({closed.token: False}, [], [])
    desk.hear(1, 4)
    assert (desk.ended, left, desk.find(1)) == ([closed.token], [closed], again)


def test_what_a_closed_connection_held_ends_with_the_worker_that_came_next() -> None:
    desk = Desk()
    closed = silent_worker(desk)
    desk.connected.remove(b"one")
    again = silent_worker(desk, b"two")
    desk.pass_time(1000)
    assert desk.find(1) is None
    assert desk.ended == [], "it may be frozen, and the same process"
    desk.connected.remove(b"two")
    desk.pass_time(1)
    assert sorted(desk.ended) == sorted([closed.token, again.token])


def test_a_frozen_process_keeps_its_slots_when_another_one_with_its_id_ends() -> None:
    desk = Desk()
    frozen = silent_worker(desk)
    desk.pass_time(121)
    other = silent_worker(desk, b"two")
    desk.pass_time(121)
    desk.connected.remove(b"two")
    desk.pass_time(1)
    assert (desk.ended, frozen.connection) == ([other.token], b"one")


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_frozen_process_keeps_its_slots_when_another_one_has_taken_its_id(comes_again: bool) -> None:
    """The other one registers or pings while the first is connected: both have one registration then."""
    desk = Desk()
    frozen = silent_worker(desk)
    desk.seen(1, pinged=True, connection=b"two")
    desk.connected.remove(b"two")
    if comes_again:
        desk.connected.add(b"three")
        assert silent_worker(desk, b"three") is not frozen
        desk.hear(1, 500)
    else:
        desk.pass_time(500)
    assert frozen.token not in desk.ended
    desk.connected.remove(b"one")
    desk.pass_time(1)
    assert desk.ended == [frozen.token]


def test_a_worker_that_held_nothing_ends_with_its_connection() -> None:
    desk = Desk()
    closed = silent_worker(desk)
    desk.touching.clear()
    desk.connected.remove(b"one")
    silent_worker(desk, b"two")
    assert desk.ended == [closed.token]


def test_a_new_process_may_have_another_layout() -> None:
    desk = Desk()
    silent_worker(desk)
    desk.connected.remove(b"one")
    described = worker(1, LARGE)
    described.connection = b"two"
    assert desk.register(described) is described


@pytest.mark.parametrize(
    ("fence_seconds", "ends_reads"), [(30.0, True), (60.0, True), (61.0, False), (0.0, False), (-1.0, False)]
)
def test_a_fence_counts_when_it_is_well_within_the_time_out(fence_seconds: float, ends_reads: bool) -> None:
    desk = Desk()
    silent = silent_worker(desk, fence_seconds=fence_seconds)
    desk.pass_time(121)
    assert desk.quarantined == {silent.token: ends_reads}


def test_workers_that_touch_no_slot_are_ended_at_once() -> None:
    desk = Desk()
    for connection, inline in ((b"", False), (b"one", True)):
        silent = silent_worker(desk, connection)
        silent.inline = inline
        desk.pass_time(121)
        assert desk.ended.pop() == silent.token
    assert desk.quarantined == {}


def test_the_revision_is_raised_when_what_is_looked_up_changes() -> None:
    """Lookups ask for the shards of a model again after each change, and only then."""
    desk = Desk()
    revisions = [desk.revision]
    first = desk.register(worker(1))
    revisions.append(desk.revision)
    desk.learn_shard(first, 1)
    revisions.append(desk.revision)
    desk.unregister(1, "unregistered")
    revisions.append(desk.revision)
    desk.register(worker(2))
    revisions.append(desk.revision)
    desk.pass_time(4000)
    assert desk.find(2) is None
    revisions.append(desk.revision)
    assert revisions == sorted(set(revisions)), "it came, its shard is known, it left, another came, that was dropped"


def test_the_revision_stays_while_workers_only_speak() -> None:
    desk = Desk()
    first = desk.register(worker(1, shard=1))
    revision = desk.revision
    assert desk.touch(first)
    assert desk.seen(1, pinged=True)
    assert desk.register(worker(1, shard=1)) is first
    desk.learn_shard(first, 0)
    assert (desk.revision, first.shard) == (revision, 1), "a shard is learned once"
