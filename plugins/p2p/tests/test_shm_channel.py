"""The channel `shm`: what is not the owner's segment, or is it no longer, is not read, and the server lives on."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from lmcache_client.errors import LMCacheError, ResourceError
from lmcache_core import HEADER_BYTES, ChannelContext, Outcome, RemoteRead, SystemClock
from lmcache_core.model.object_header import digest
from lmcache_devkit.borrowed_memory import SHM_ROOT, BorrowedMemory
from lmcache_p2p import shm_channel
from lmcache_p2p.shm_channel import Description, DigestedJob, ShmChannel, ShmRoute

SIZE = 4 << 20
SECRET = bytes(16)


def channel(memory: BorrowedMemory) -> ShmChannel:
    return ShmChannel(
        None, ChannelContext(memory.region, "127.0.0.1", "b" * 32, SystemClock(), logging.getLogger("shm"))
    )


@pytest.fixture
def source() -> Iterator[BorrowedMemory]:
    memory = BorrowedMemory(SIZE, shared=True)
    memory.region.view[:] = os.urandom(SIZE)
    yield memory
    memory.close()


@pytest.fixture
def owner(source: BorrowedMemory) -> Iterator[ShmChannel]:
    owner = channel(source)
    yield owner
    owner.close(1.0)


@pytest.fixture
def memory() -> Iterator[BorrowedMemory]:
    memory = BorrowedMemory(2 * SIZE, shared=True)
    yield memory
    memory.close()


@pytest.fixture
def reader(memory: BorrowedMemory) -> Iterator[ShmChannel]:
    reader = channel(memory)
    yield reader
    reader.close(1.0)


def read(reader: ShmChannel, route: ShmRoute, *reads: RemoteRead) -> DigestedJob:
    job = route.submit_read(SECRET, reads)
    until = time.monotonic() + 10
    poll = select.poll()
    poll.register(reader.completions().fileno(), select.POLLIN)
    while time.monotonic() < until:
        poll.poll(1000)
        for done in reader.completions().drain():
            assert isinstance(done, DigestedJob)
            assert done.job == job
            return done
    raise AssertionError("it is not answered")


def changed(owner: ShmChannel, **fields: Any) -> bytes:
    about = msgspec.msgpack.decode(owner.describe(), type=Description)
    return msgspec.msgpack.encode(msgspec.structs.replace(about, **fields))


def test_the_digest_of_the_payload_comes_with_the_bytes(
    owner: ShmChannel, source: BorrowedMemory, reader: ShmChannel, memory: BorrowedMemory
) -> None:
    done = read(reader, reader.connect(owner.describe()), RemoteRead(8192, memory.lend(HEADER_BYTES + 100_001)))
    payload = source.region.view[8192 + HEADER_BYTES : 8192 + HEADER_BYTES + 100_001]
    assert done.outcomes == (Outcome.DONE,)
    assert done.digests == (digest(payload),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"machine": "another"}, "another machine"),
        ({"user": os.geteuid() + 1}, "belongs to user"),
        ({"inode": 1}, "replaced, or lies in another container"),
        ({"device": 1}, "replaced, or lies in another container"),
        ({"name": "not-there", "descriptor": -1}, "No such file"),
        ({"name": "not-there", "descriptor": 0}, "not a file of this user|No such file|another one"),
        ({"name": "not-there", "descriptor": 2**62}, "No such file"),
        ({"name": "../etc/passwd"}, "not the name of a segment"),
        ({"name": ""}, "not the name of a segment"),
        ({"name": "a\0b"}, "null"),
        ({"length": SIZE + 1}, f"has {SIZE} bytes"),
        ({"length": 0}, f"has {SIZE} bytes"),
        ({"length": 2**62}, f"has {SIZE} bytes"),
        ({"socket": "not-listening"}, "cannot be reached"),
        ({"socket": "x" * 300}, "cannot be reached"),
    ],
)
def test_what_is_not_its_segment_is_not_connected_to(
    owner: ShmChannel, reader: ShmChannel, fields: dict[str, Any], said: str
) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LMCacheError, match=said):
        reader.connect(changed(owner, **fields))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_process_of_another_user_is_not_connected_to(
    owner: ShmChannel, reader: ShmChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says whose process listens: the description is not believed."""
    description = changed(owner, user=os.geteuid() + 1)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(LMCacheError, match=f"a process of user {os.getuid()} listens there"):
        reader.connect(description)


def test_a_segment_that_was_replaced_under_its_name_is_not_connected_to(
    owner: ShmChannel, source: BorrowedMemory, reader: ShmChannel
) -> None:
    description = owner.describe()
    assert source.path is not None
    source.path.unlink()
    source.path.write_bytes(bytes(SIZE))
    with pytest.raises(LMCacheError, match="replaced"):
        reader.connect(description)


def test_a_segment_that_was_cut_is_missing_and_ends_no_process(
    owner: ShmChannel, source: BorrowedMemory, reader: ShmChannel, memory: BorrowedMemory
) -> None:
    route = reader.connect(owner.describe())
    assert source.region.descriptor is not None
    os.ftruncate(source.region.descriptor, SIZE // 2)
    reads = [RemoteRead(offset, memory.lend(8192)) for offset in (SIZE // 2 - 8192, SIZE // 2 - 4096, SIZE - 8192)]
    assert read(reader, route, *reads).outcomes == (Outcome.DONE, Outcome.MISSING, Outcome.MISSING)


def test_a_segment_that_is_cut_while_it_is_read_ends_no_process(
    owner: ShmChannel,
    source: BorrowedMemory,
    reader: ShmChannel,
    memory: BorrowedMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the look at its length."""
    route = reader.connect(owner.describe())
    monkeypatch.setattr(shm_channel.Segment, "has", lambda self, offset, length: True)
    assert source.region.descriptor is not None
    os.ftruncate(source.region.descriptor, 4096)
    assert read(reader, route, RemoteRead(SIZE // 2, memory.lend(8192))).outcomes == (Outcome.FAILED,)


OWNER = """
import logging, sys, time
from lmcache_core import ChannelContext, SystemClock
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_p2p.shm_channel import ShmChannel
memory = BorrowedMemory(1 << 20, shared=True)
memory.region.view[:] = b"k" * (1 << 20)
made = ShmChannel(None, ChannelContext(memory.region, "127.0.0.1", "c" * 32, SystemClock(), logging.getLogger("shm")))
print(memory.region.name, made.describe().hex(), flush=True)
time.sleep(60)
"""


def test_a_segment_without_a_name_is_mapped_by_its_owners_descriptor(
    reader: ShmChannel, memory: BorrowedMemory
) -> None:
    """As that of a cache inside of an engine, whose workers have mapped it."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name, description = process.stdout.readline().split()
        (SHM_ROOT / name).unlink()
        try:
            target = memory.lend(8192)
            route = reader.connect(bytes.fromhex(description))
            assert read(reader, route, RemoteRead(4096, target)).outcomes == (Outcome.DONE,)
            assert target.view == b"k" * 8192
            other = msgspec.structs.replace(
                msgspec.msgpack.decode(bytes.fromhex(description), type=Description), descriptor=1
            )
            with pytest.raises(LMCacheError, match="not a file of this user"):
                reader.connect(msgspec.msgpack.encode(other))
        finally:
            process.kill()


def test_an_owner_that_was_killed_is_read_from_no_more(reader: ShmChannel, memory: BorrowedMemory) -> None:
    """Its segment is still there, and mapped."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name, description = process.stdout.readline().split()
        try:
            route = reader.connect(bytes.fromhex(description))
            target = memory.lend(8192)
            assert read(reader, route, RemoteRead(0, target)).outcomes == (Outcome.DONE,)
            assert target.view == b"k" * 8192
            process.kill()
            process.wait(10)
            assert read(reader, route, RemoteRead(0, memory.lend(8192))).outcomes == (Outcome.FAILED,)
            with pytest.raises(LMCacheError, match="cannot be reached"):
                reader.connect(bytes.fromhex(description))
        finally:
            process.kill()
            (SHM_ROOT / name).unlink()


def test_readers_that_have_gone_make_room(owner: ShmChannel, reader: ShmChannel) -> None:
    for _ in range(20):
        reader.connect(owner.describe()).close()
    owner.describe()
    assert owner._readers == []


def test_an_l1_that_is_not_shared_is_refused_with_the_remedy() -> None:
    with pytest.raises(ResourceError, match="give /dev/shm room"):
        channel(BorrowedMemory(1 << 20))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_connections_of_other_users_are_closed_and_take_no_place(
    owner: ShmChannel, reader: ShmChannel, memory: BorrowedMemory
) -> None:
    """Names of the abstract name space are in /proc/net/unix, and any user may connect to them."""
    about = msgspec.msgpack.decode(owner.describe(), type=Description)
    connect = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "made = [socket.socket(socket.AF_UNIX) for _ in range(20)]\n"
        "for each in made: each.connect('\\0' + sys.argv[1])\n"
        "print('connected', flush=True)\n"
        "sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", connect, about.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout
    try:
        assert other.stdout.readline() == "connected\n"
        route = reader.connect(owner.describe())
        owner.describe()
        assert len(owner._readers) == 1, "the reader"
        (outcome,) = read(reader, route, RemoteRead(0, memory.lend(HEADER_BYTES * 2))).outcomes
        assert outcome is Outcome.DONE
    finally:
        other.communicate(timeout=10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_another_user_that_connects_without_end_stops_no_owner(owner: ShmChannel, reader: ShmChannel) -> None:
    about = msgspec.msgpack.decode(owner.describe(), type=Description)
    connect = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "print('connects', flush=True)\n"
        "while True:\n"
        "    with socket.socket(socket.AF_UNIX) as one:\n"
        "        one.setblocking(False)\n"
        "        try: one.connect('\\0' + sys.argv[1])\n"
        "        except OSError: pass\n"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", connect, about.socket], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for each in others:
            assert each.stdout
            assert each.stdout.readline() == "connects\n"
        end = time.monotonic() + 10
        describing = threading.Thread(target=lambda: [owner.describe() for _ in range(20)], daemon=True)
        describing.start()
        describing.join(end - time.monotonic())
        assert not describing.is_alive()
    finally:
        for each in others:
            each.kill()
            each.communicate()
    reader.connect(owner.describe())
