"""Who may own a backend, what others see, and how it changes hands."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmcache_core import ResourceError
from lmcache_devkit.fake_clock import FakeClock
from lmcache_object_remote import OwnerRecord, Ownership, ProcessMark, SharedSettings, admit_guest
from lmcache_object_remote.owner_watch import OwnerWatch

LEASE = 60.0
ELSEWHERE = ProcessMark("another machine", 7, 7)
RECORD = OwnerRecord("a", "boot-a", "claim-a", False, LEASE, 1, ELSEWHERE)


def holds(ownership: Ownership) -> bool:
    """Asked anew each time: `held` changes by itself."""
    return ownership.held


class Records:
    """A backend that compares, and answers at once."""

    def __init__(self, value: bytes | None = None) -> None:
        self.value = value
        self.fails = False

    async def read(self) -> bytes | None:
        if self.fails:
            raise OSError("no route to the backend")
        return self.value

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        if self.fails:
            raise OSError("no route to the backend")
        if self.value != replaces:
            return False
        self.value = data
        return True

    async def remove(self) -> None:
        self.value = None


class World:
    """Time passes only while a task sleeps; `owner_renews` is another server's owner, which goes on renewing."""

    def __init__(self, value: bytes | None = None) -> None:
        self.clock = FakeClock()
        self.records = Records(value)
        self.other: OwnerRecord | None = None
        self.sleeps_left = 10_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.sleeps_left -= 1
        if self.sleeps_left < 0:
            await asyncio.Event().wait()
        self.clock.advance(seconds)
        if self.other is not None:
            self.other = replace(self.other, counter=self.other.counter + 1)
            self.records.value = self.other.pack()

    def ownership(self, name: str = "b", *, shared: bool = False, conditional: bool = True) -> Ownership:
        return Ownership(
            self.records,
            instance_id=name,
            boot_id=f"boot-{name}",
            shared=shared,
            clock=self.clock,
            lease_seconds=LEASE,
            conditional=conditional,
            place="acme: bucket 'kv'",
            sleep=self.sleep,
        )

    async def keep(self, ownership: Ownership, rounds: int) -> None:
        """Let it renew that number of times."""
        self.sleeps_left = rounds
        keeper = asyncio.create_task(ownership.keep())
        while self.sleeps_left >= 0:
            await asyncio.sleep(0)
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper
        self.sleeps_left = 10_000


@pytest.mark.parametrize("conditional", [True, False])
def test_an_unowned_backend_is_taken_kept_and_released(conditional: bool) -> None:
    async def run() -> None:
        world = World()
        ownership = world.ownership(conditional=conditional)
        assert not holds(ownership)
        await ownership.take()
        assert holds(ownership)
        await world.keep(ownership, 30)
        assert holds(ownership)
        await ownership.give_up()
        assert not holds(ownership)
        assert world.records.value is None
        follower = world.ownership("c", conditional=conditional)
        await follower.take()
        assert holds(follower)

    asyncio.run(run())


def test_a_live_owner_is_named_with_the_remedy() -> None:
    async def refusal(owner_shares: bool, shared: bool) -> str:
        world = World()
        world.other = replace(RECORD, shared=owner_shares)
        world.records.value = world.other.pack()
        with pytest.raises(ResourceError) as caught:
            await world.ownership(shared=shared).take()
        return str(caught.value)

    alone = asyncio.run(refusal(False, False))
    assert "acme: bucket 'kv': owned by server 'a' (boot boot-a" in alone
    assert "prefix of its own" in alone
    assert "set 'owner' to false here" in asyncio.run(refusal(True, True))
    assert "set 'shared' to true there" in asyncio.run(refusal(False, True))


def test_a_silent_owner_is_waited_for_and_followed() -> None:
    async def run() -> None:
        world = World(RECORD.pack())
        ownership = world.ownership()
        before = world.clock.monotonic()
        await ownership.take()
        assert not holds(ownership)
        assert ownership.other == RECORD
        assert world.clock.monotonic() - before < LEASE / 4
        await world.keep(ownership, 12)
        assert holds(ownership)
        assert world.clock.monotonic() - before >= LEASE

    asyncio.run(run())


def test_an_owner_that_wakes_up_while_it_is_waited_for_stays_the_owner() -> None:
    async def run() -> None:
        world = World(RECORD.pack())
        ownership = world.ownership()
        await ownership.take()
        world.other = RECORD
        await world.keep(ownership, 40)
        assert not holds(ownership)
        assert world.other is not None
        assert world.records.value == world.other.pack()

    asyncio.run(run())


@pytest.mark.parametrize("conditional", [True, False])
def test_a_killed_process_of_this_machine_is_followed_at_once(conditional: bool) -> None:
    code = "from lmcache_object_remote import ProcessMark; print(*ProcessMark.current(), sep='|')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    machine, pid, started = said.strip().split("|")

    async def run() -> None:
        world = World(replace(RECORD, process=ProcessMark(machine, int(pid), int(started))).pack())
        before = world.clock.monotonic()
        ownership = world.ownership(conditional=conditional)
        await ownership.take()
        assert holds(ownership)
        assert world.clock.monotonic() - before <= LEASE / 20

    if not machine:
        pytest.skip("this machine does not tell its boot and namespace")
    asyncio.run(run())


def test_a_process_is_gone_only_where_one_can_tell() -> None:
    here = ProcessMark.current()
    assert not here.is_gone()
    assert not ELSEWHERE.is_gone()
    assert not ProcessMark("", here.pid, here.started + 1).is_gone()
    if here.machine:
        assert here._replace(started=here.started + 1).is_gone()  # the number has been given to another process
        assert not ProcessMark(here.machine, os.getpid(), 0).is_gone()


def test_an_owner_that_cannot_renew_knows_before_anybody_can_follow(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        world = World()
        ownership = world.ownership()
        await ownership.take()
        written = world.clock.monotonic()
        world.records.fails = True
        with caplog.at_level(logging.INFO):
            await world.keep(ownership, 20)
        assert not holds(ownership)
        world.records.fails = False
        assert world.clock.monotonic() - written >= LEASE
        await world.keep(ownership, 1)
        assert holds(ownership)  # no other owner had followed

    asyncio.run(run())
    lines = [record.message for record in caplog.records if "cannot be renewed" in record.message]
    assert len(lines) == 1
    assert any("owns it no longer" in record.message for record in caplog.records)


def test_a_claim_that_came_too_late_is_not_taken_for_another_server(caplog: pytest.LogCaptureFixture) -> None:
    """The backend cannot compare, and its first answer is slow: the claim counts only when its own lease is over."""

    async def run() -> None:
        world = World()
        ownership = world.ownership(conditional=False)
        write = world.records.write

        async def slow_write(data: bytes, *, replaces: bytes | None) -> bool:
            world.clock.advance(LEASE / 10)
            return await write(data, replaces=replaces)

        world.records.write = slow_write  # type: ignore[method-assign]
        await ownership.take()
        assert not holds(ownership)
        world.records.write = write  # type: ignore[method-assign]
        assert "own claim took too long" in caplog.text

    asyncio.run(run())


def test_held_ends_without_anybody_doing_anything() -> None:
    async def run() -> None:
        world = World()
        ownership = world.ownership()
        await ownership.take()
        world.clock.advance(LEASE * 0.89)
        assert holds(ownership)
        world.clock.advance(LEASE * 0.02)
        assert not holds(ownership)

    asyncio.run(run())


def test_who_was_followed_neither_writes_nor_removes() -> None:
    async def run() -> None:
        world = World()
        ownership = world.ownership()
        await ownership.take()
        world.records.value = RECORD.pack()
        await world.keep(ownership, 1)
        assert not holds(ownership)
        await ownership.give_up()
        assert world.records.value == RECORD.pack()

    asyncio.run(run())


def test_what_is_not_a_record_is_left_alone() -> None:
    async def run(value: bytes) -> None:
        world = World(value)
        with pytest.raises(ResourceError, match=r"not an owner's record|another version"):
            await world.ownership().take()
        assert world.records.value == value

    for value in (b"", b"foreign notes", b"[1]", b'{"owner": "me"}'):
        asyncio.run(run(value))


@pytest.mark.parametrize(
    "record",
    [
        b'{"lmcache_owner": 2}',
        b'{"lmcache_owner": 2, "owners": [' + b"0," * 5000 + b"0]}",
        RECORD.pack().replace(b'"lmcache_owner": 1', b'"lmcache_owner": 2'),
    ],
)
def test_a_record_of_another_version_is_never_replaced_whatever_it_looks_like(record: bytes) -> None:
    async def run() -> None:
        world = World(record)
        with pytest.raises(ResourceError, match=r"kv'.*(another version|not an owner's record).*remove it"):
            await world.ownership().take()
        with pytest.raises(ResourceError, match="remove it"):
            await admit_guest(world.records, clock=world.clock, place="acme: bucket 'kv'", sleep=world.sleep)
        assert world.records.value == record

    asyncio.run(run())


def sealed(**fields: object) -> bytes:
    """A record with a right digest, and these fields."""
    body = json.loads(RECORD.pack())
    del body["digest"]
    body.update(fields)
    digest = hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
    return json.dumps({**body, "digest": digest}, sort_keys=True).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"lease_seconds": float("nan")},
        {"lease_seconds": 1e-9},
        {"lease_seconds": 1e9},
        {"counter": True},
        {"process": ["machine", 2**70, 1]},
        {"process": ["machine", -1, 1]},
        {"process": "abc"},
        {"process": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_record_that_makes_no_sense_counts_as_damaged(fields: dict[str, object]) -> None:
    assert OwnerRecord.unpack(sealed(), "here") == RECORD
    assert OwnerRecord.unpack(sealed(**fields), "here") is None


@pytest.mark.parametrize("depth", [50, 500, 2000])
def test_a_deep_record_is_not_an_error_of_ours(depth: int) -> None:
    deep = b'{"lmcache_owner": 1, "more": ' + b"[" * depth + b"]" * depth + b"}"
    assert OwnerRecord.unpack(deep, "here") is None


def test_a_damaged_record_is_replaced_after_a_lease() -> None:
    async def run() -> None:
        world = World(RECORD.pack().replace(b"boot-a", b"boot-x"))
        ownership = world.ownership()
        await ownership.take()
        assert not holds(ownership)
        await world.keep(ownership, 12)
        assert holds(ownership)

    asyncio.run(run())


def test_guests_are_admitted_unless_a_live_owner_does_not_share() -> None:
    async def run(value: bytes | None, other: OwnerRecord | None = None) -> None:
        world = World(value)
        world.other = other
        await admit_guest(world.records, clock=world.clock, place="acme: bucket 'kv'", sleep=world.sleep)
        assert world.records.value == value or other

    asyncio.run(run(None))
    asyncio.run(run(RECORD.pack()))  # not shared, but silent
    asyncio.run(run(replace(RECORD, shared=True).pack(), replace(RECORD, shared=True)))
    with pytest.raises(ResourceError, match=r"'a'.*does not share it; set 'shared' to true there"):
        asyncio.run(run(RECORD.pack(), RECORD))


RECORDS = st.builds(
    OwnerRecord,
    instance_id=st.text(max_size=20),
    boot_id=st.text(max_size=20),
    claim=st.text(max_size=8),
    shared=st.booleans(),
    lease_seconds=st.floats(0.5, 3600),
    counter=st.integers(0, 2**62),
    process=st.builds(ProcessMark, st.text(max_size=9), st.integers(0, 2**22), st.integers(0, 2**60)),
)


@given(RECORDS, st.data())
def test_a_record_comes_back_as_it_was_or_not_at_all(record: OwnerRecord, data: st.DataObject) -> None:
    packed = record.pack()
    assert OwnerRecord.unpack(packed, "here") == record
    at = data.draw(st.integers(0, len(packed) - 1))
    torn = packed[:at] + bytes([packed[at] ^ data.draw(st.integers(1, 255))]) + packed[at + 1 :]
    for damaged in (torn, packed[:at]):
        try:
            assert OwnerRecord.unpack(damaged, "here") in (None, record)  # equal where only the spelling has changed
        except ResourceError:
            pass  # the mark itself was hit: it is none of ours any more


@given(st.binary(max_size=200))
def test_anything_may_lie_there(value: bytes) -> None:
    watch = OwnerWatch(FakeClock(), "here", LEASE)
    with contextlib.suppress(ResourceError):
        watch.saw(value)
    assert watch.record is None


def test_settings_say_who_owns() -> None:
    assert SharedSettings().owns
    assert not SharedSettings(shared=True).owns
    assert SharedSettings(shared=True, owner=True).owns
    assert SharedSettings(owner=True).owns
    with pytest.raises(ValidationError, match=r"'owner' is false, .* set 'shared' to true"):
        SharedSettings(owner=False)
