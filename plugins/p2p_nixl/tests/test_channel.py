"""The channel `nixl`: pieces that are registered later, owners that stop and die in the middle of a read, and who is let in."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core import ChannelContext, JobDone, JobId, Outcome, RemoteRead, Route, SystemClock
from lmcache_devkit.borrowed_memory import UNWRITTEN, BorrowedMemory
from lmcache_p2p_nixl import description, reading_agent
from lmcache_p2p_nixl.channel import NixlChannel
from lmcache_p2p_nixl.description import SLOT_BYTES, packed, unpacked
from lmcache_p2p_nixl.settings import NixlChannelSettings

pytest.importorskip("nixl", reason="no build of NIXL is installed")

SIZE = 64 << 20
SECRET = bytes(16)
SECONDS = 60.0
LIMIT_SECONDS = 1.0


def channel(memory: BorrowedMemory, name: str, host: str = "127.0.0.1", trusted: bool = True) -> NixlChannel:
    boot_id = name + os.urandom(8).hex()
    return NixlChannel(
        NixlChannelSettings(load_timeout=LIMIT_SECONDS, trusted_network=trusted),
        ChannelContext(memory.region, host, boot_id, SystemClock(), logging.getLogger("nixl")),
    )


@pytest.fixture
def memory() -> Iterator[BorrowedMemory]:
    memory = BorrowedMemory(2 * SIZE)
    yield memory
    memory.close()


@pytest.fixture
def reader(memory: BorrowedMemory) -> Iterator[NixlChannel]:
    reader = channel(memory, "reader")
    yield reader
    reader.close(1.0)


@pytest.fixture(params=["shared memory", "tcp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp,self")
    return str(request.param)


@pytest.fixture
def only_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,self")


def answered(reader: NixlChannel, job: JobId) -> tuple[Outcome, ...]:
    until = time.monotonic() + SECONDS
    poll = select.poll()
    poll.register(reader.completions().fileno(), select.POLLIN)
    while time.monotonic() < until:
        poll.poll(1000)
        for done in reader.completions().drain():
            assert isinstance(done, JobDone)
            assert (done.job, done.released) == (job, True)
            return tuple(done.outcomes)
    raise AssertionError("it is not answered")


def read(reader: NixlChannel, route: Route, *reads: RemoteRead) -> tuple[Outcome, ...]:
    return answered(reader, route.submit_read(SECRET, reads))


class TestPieces:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(description, "PIECE_BYTES", 64 << 10)
        monkeypatch.setattr(reading_agent, "PUBLISH_SECONDS", 0.2)

    @pytest.fixture
    def source(self) -> Iterator[BorrowedMemory]:
        memory = BorrowedMemory(1 << 20)
        memory.region.view[:] = os.urandom(1 << 20)
        yield memory
        memory.close()

    @pytest.fixture
    def owner(self, source: BorrowedMemory) -> Iterator[NixlChannel]:
        owner = channel(source, "owner")
        yield owner
        owner.close(1.0)

    def test_pieces_that_were_leased_after_the_connection_are_read(
        self, owner: NixlChannel, source: BorrowedMemory, reader: NixlChannel, memory: BorrowedMemory
    ) -> None:
        """Across the borders of pieces of both sides; what lies in no leased piece was never registered."""
        route = reader.connect(owner.describe())
        memory.lend(20_000)  # the borders of one side are not those of the other
        for offset, length in ((10, 100), (150_000, 300_000), ((1 << 20) - 70_000, 70_000)):
            owner.expose(SECRET, [(offset, length)])
            wanted = RemoteRead(offset, memory.lend(length))
            assert read(reader, route, wanted) == (Outcome.DONE,)
            assert wanted.buffer.view == source.region.view[offset : offset + length]
        unleased = RemoteRead(600_000, memory.lend(1000))
        assert read(reader, route, unleased) == (Outcome.MISSING,)
        assert unleased.buffer.view == UNWRITTEN * 1000

    def test_what_lies_outside_of_the_region_is_missing_and_the_rest_is_read(
        self, owner: NixlChannel, reader: NixlChannel, memory: BorrowedMemory
    ) -> None:
        owner.expose(SECRET, [(0, 4096)])
        route = reader.connect(owner.describe())
        reads = [RemoteRead(offset, memory.lend(4096)) for offset in (0, -4096, (1 << 20) - 4095, 2**62)]
        assert read(reader, route, *reads) == (Outcome.DONE, *[Outcome.MISSING] * 3)

    def test_a_connection_that_was_lost_is_made_anew(
        self, owner: NixlChannel, reader: NixlChannel, memory: BorrowedMemory
    ) -> None:
        """One job fails, whose reads NIXL refuses; the next one connects."""
        owner.expose(SECRET, [(0, 4096)])
        route = reader.connect(owner.describe())
        assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
        agent = reader._reader._agent
        assert agent is not None
        ((name, _),) = agent._peers.values()
        agent.thread.call(lambda agent: agent.remove_peer(name)).result(SECONDS)
        assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.FAILED,)
        assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)

    def test_one_of_two_routes_to_an_owner_goes_on_without_the_other(
        self, owner: NixlChannel, reader: NixlChannel, memory: BorrowedMemory
    ) -> None:
        owner.expose(SECRET, [(0, 4096)])
        first, second = (reader.connect(owner.describe()) for _ in range(2))
        first.close()
        assert read(reader, second, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
        second.close()
        again = reader.connect(owner.describe())
        assert read(reader, again, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)


def test_a_slot_that_was_changed_or_is_another_pieces_is_not_given_to_nixl() -> None:
    slot = packed(b"secret", 7, b"keys")
    whole = slot + bytes(SLOT_BYTES - len(slot))
    assert unpacked(b"secret", 7, whole) == b"keys"
    assert unpacked(b"secret", 8, whole) is None
    assert unpacked(b"other", 7, whole) is None
    assert unpacked(b"secret", 7, bytes(SLOT_BYTES)) is None, "it was not written yet"
    for at in (0, 5, len(slot) - 1):
        changed = bytearray(whole)
        changed[at] ^= 1
        assert unpacked(b"secret", 7, bytes(changed)) is None


OWNER = f"""
import logging, sys, time
from lmcache_core import ChannelContext, SystemClock
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p_nixl.channel import NixlChannel
from lmcache_p2p_nixl.settings import NixlChannelSettings
memory = BorrowedMemory({SIZE})
memory.region.view[:] = b"k" * {SIZE}
made = NixlChannel(
    NixlChannelSettings(trusted_network=True),
    ChannelContext(memory.region, "127.0.0.1", sys.argv[1], SystemClock(), logging.getLogger("nixl")),
)
made.expose(bytes(16), [(0, {SIZE})])
print(made.describe().hex(), flush=True)
sys.stdin.read()
made.close(1.0)
"""


class OwnerProcess:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, "owner" + os.urandom(8).hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.description = bytes.fromhex(self.process.stdout.readline())

    def end(self) -> int:
        """What the process ends with when it is asked to."""
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=SECONDS)


@pytest.fixture
def owner(transport: str) -> Iterator[OwnerProcess]:
    owner = OwnerProcess()
    yield owner
    owner.kill()


def test_an_owner_in_another_process_is_read_and_both_end_well(
    owner: OwnerProcess, reader: NixlChannel, memory: BorrowedMemory
) -> None:
    route = reader.connect(owner.description)
    target = memory.lend(SIZE)
    assert read(reader, route, RemoteRead(0, target)) == (Outcome.DONE,)
    assert target.view == b"k" * SIZE
    assert owner.end() == 0


@pytest.mark.slow
def test_it_listens_at_the_advertised_address_alone(owner: OwnerProcess) -> None:
    said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    lines = [line for line in said.splitlines() if f"pid={owner.process.pid}," in line]
    assert lines
    assert [line for line in lines if not re.search(r"\s127\.0\.0\.1:\d+\s", line)] == []


@pytest.mark.slow
def test_an_owner_that_was_killed_is_a_failure_and_the_next_one_is_read(
    owner: OwnerProcess, reader: NixlChannel, memory: BorrowedMemory
) -> None:
    route = reader.connect(owner.description)
    assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
    under_way = route.submit_read(SECRET, [RemoteRead(0, memory.lend(SIZE))])
    owner.kill()
    answered(reader, under_way)  # over the kernel it may have come to its end before
    assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.FAILED,)
    with pytest.raises(LMCacheError):
        reader.connect(owner.description)
    another = OwnerProcess()
    try:
        assert read(reader, reader.connect(another.description), RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
    finally:
        another.kill()


@pytest.mark.usefixtures("only_tcp")
@pytest.mark.slow
def test_an_owner_that_stops_in_a_read_is_a_failure_and_its_late_bytes_touch_nothing(memory: BorrowedMemory) -> None:
    """Also where it goes on afterwards, and another one is read meanwhile."""
    stopped, other = OwnerProcess(), OwnerProcess()
    reader = channel(memory, "reader")
    try:
        route, others = (reader.connect(each.description) for each in (stopped, other))
        assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        target = memory.lend(SIZE // 2)
        assert read(reader, route, RemoteRead(0, target)) == (Outcome.FAILED,)
        target.view[:] = UNWRITTEN * len(target.view)
        os.kill(stopped.process.pid, signal.SIGCONT)
        assert read(reader, others, RemoteRead(0, memory.lend(4096))) == (Outcome.DONE,)
        assert read(reader, route, RemoteRead(0, memory.lend(4096))) == (Outcome.FAILED,), "it connects anew"
        time.sleep(1.0)
        assert target.view == UNWRITTEN * len(target.view), "it was written to after its job was released"
        assert len(reader._reader._agents) == 1, "the one that was cut was released"
        assert [thread.name for thread in threading.enumerate()].count("p2p-nixl-reader") == 1
    finally:
        reader.close(1.0)
        for each in (stopped, other):
            each.kill()


@pytest.mark.usefixtures("only_tcp")
def test_closing_does_not_wait_for_an_owner_that_was_stopped(memory: BorrowedMemory) -> None:
    stopped = OwnerProcess()
    reader = channel(memory, "reader")
    try:
        route = reader.connect(stopped.description)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        job = route.submit_read(SECRET, [RemoteRead(0, memory.lend(SIZE // 2))])
        reader.close(0.2)
        assert answered(reader, job) == (Outcome.FAILED,)
    finally:
        reader.close(1.0)
        stopped.kill()


@pytest.mark.parametrize(
    ("host", "trusted", "said"),
    [
        ("203.0.113.7", False, "a program that does can write to this process's memory.*trusted_network"),
        ("127.0.0.1", False, "does not listen at"),
        ("203.0.113.7", True, "not an address of this machine"),
        ("localhost", False, "an IP address"),
    ],
)
def test_where_it_does_not_listen(memory: BorrowedMemory, host: str, trusted: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        channel(memory, "owner", host, trusted)
