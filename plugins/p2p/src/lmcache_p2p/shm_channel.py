"""The transfer channel `shm`: servers of one user on one machine read each other's L1 out of shared memory.

An owner has no thread and takes no part in a read: it says which segment its L1 is.  It listens at a socket that every reader
stays connected to.  The kernel says whose process listens there, and cuts the readers off when that process ends.

A reader maps the segment read-only, and the native engine copies from there into its own L1, with the digest on the way.
**Nothing in Python touches the mapping**: where the segment is cut, a page of it would end the process, which the engine's COPY
survives.

Leases are not kept apart: processes of one user can read each other's segments anyway.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import secrets
import select
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from lmcache_core import (
    HEADER_BYTES,
    ChannelContext,
    CompletionQueue,
    Inbox,
    JobDone,
    JobId,
    LMCacheError,
    Outcome,
    RemoteRead,
    ResourceError,
    Route,
    TransferChannel,
)
from lmcache_native.io import COPY, IoEngine

SHM_ROOT: Final = Path("/dev/shm")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
WORKERS: Final = 2
"""Threads that copy: one of them is about as fast as memcpy."""
QUEUE_DEPTH: Final = 256
BYTES_IN_FLIGHT: Final = 1 << 30
READERS_MAX: Final = 1024
NO_DIGEST: Final = -1
_CREDENTIALS: Final = struct.Struct("3i")

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


class Description(msgspec.Struct, frozen=True):
    """Of an owner's segment."""

    machine: str
    """The boot id of its kernel."""
    user: int
    name: str
    device: int
    inode: int
    length: int
    socket: str
    """Where the owner listens, in the abstract name space."""
    descriptor: int = -1
    """Of the segment, in the owner's process: that of a cache inside of an engine has no name."""


@dataclass(frozen=True, slots=True)
class DigestedJob(JobDone):
    """Done, and the payload digest of each read is known."""

    digests: tuple[bytes | None, ...] = ()
    """xxh3-128 of what lies behind the header page; None where nothing was read."""


class Segment:
    """The memory of an owner, mapped read-only, until nothing refers to it.  Raises LMCacheError where it is not
    what the description says."""

    def __init__(self, about: Description) -> None:
        if about.machine != _machine():
            raise LMCacheError("it is on another machine")
        if about.user != os.geteuid():
            raise LMCacheError(f"it belongs to user {about.user}, and this server to {os.geteuid()}")
        if not about.name or "/" in about.name or about.name in (".", ".."):
            raise LMCacheError(f"{about.name[:64]!r} is not the name of a segment")
        self.length = about.length
        self._connection = _connected(about)
        self.descriptor = -1
        try:
            self.descriptor = _opened(about, self._connection)
            found = os.fstat(self.descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != about.user:
                raise LMCacheError("it is not a file of this user")
            if (found.st_dev, found.st_ino) != (about.device, about.inode):
                raise LMCacheError("another one has its name here: it was replaced, or lies in another container")
            if not 0 < about.length <= found.st_size:
                raise LMCacheError(f"it has {found.st_size} bytes, and not {about.length}")
            self.address = _mapped(self.descriptor, about.length)
        except (OSError, ValueError, LMCacheError) as error:
            self._connection.close()
            if self.descriptor >= 0:
                os.close(self.descriptor)
            raise LMCacheError(f"the segment {about.name[:64]!r} is not read from: {error}") from None
        weakref.finalize(self, _release, self.address, self.length, self.descriptor, self._connection)

    @property
    def has_owner(self) -> bool:
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:  # it says nothing, as always
            return True
        except OSError:
            pass
        return False

    def has(self, offset: int, length: int) -> bool:
        """Do these bytes lie in it, as long as it is now?"""
        end = offset + length
        return 0 <= offset <= end <= min(self.length, os.fstat(self.descriptor).st_size)


class Job:
    """Belongs to the channel's thread once its copies were submitted."""

    def __init__(self, number: JobId, size: int, segment: Segment | None) -> None:
        self.id, self.segment = number, segment
        self.outcomes = [Outcome.FAILED] * size
        self.digests: list[bytes | None] = [None] * size
        self.left = 0

    def done(self) -> DigestedJob:
        self.segment = None
        return DigestedJob(self.id, tuple(self.outcomes), True, tuple(self.digests))


class ShmChannel(TransferChannel):
    """Copies for all of its routes; one thread takes the engine's answers."""

    keeps_apart = False

    def __init__(self, settings: None, context: ChannelContext) -> None:
        """Raises ResourceError where L1 is not a segment of shared memory."""
        region = context.region
        if region.name is None or region.descriptor is None:
            raise ResourceError(
                "the channel shm reads out of /dev/shm, and this server's L1 is not there; give /dev/shm room for it"
            )
        found = os.fstat(region.descriptor)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        name = f"lmcache-p2p-{secrets.token_hex(16)}"
        self._listener.bind(f"\0{name}")
        self._listener.listen(READERS_MAX)
        self._about = msgspec.msgpack.encode(
            Description(
                _machine(),
                os.geteuid(),
                region.name,
                found.st_dev,
                found.st_ino,
                region.length,
                name,
                region.descriptor,
            )
        )
        self._lock = threading.Lock()  # guards the two below
        self._readers: list[socket.socket] = []
        self._closed = False
        self._queue = CompletionQueue()
        self._engine = IoEngine("threads", WORKERS, QUEUE_DEPTH, BYTES_IN_FLIGHT)
        self._copies: dict[int, tuple[Job, int]] = {}
        """By token: a copy that the engine has not answered."""
        self._tokens, self._numbers = itertools.count(), itertools.count(1)
        self._wakes: Inbox[None] = Inbox()
        self._ended = False
        """The engine touches no memory any more."""
        self._thread = threading.Thread(target=self._run, name="p2p-shm", daemon=True)
        self._thread.start()

    def describe(self) -> bytes:
        """Also forgets readers that have gone."""
        with self._lock:
            for _ in range(READERS_MAX):  # others that connect without end wait for the next time
                if self._closed or len(self._readers) >= READERS_MAX:
                    break
                try:
                    reader = self._listener.accept()[0]
                except OSError:
                    break  # no reader waits
                if _user_of(reader) == os.geteuid():
                    self._readers.append(reader)
                else:
                    reader.close()  # any user may connect
            gone = select.poll()
            for reader in self._readers:
                gone.register(reader, select.POLLIN)  # readers send nothing: it can only be their end
            ended = {descriptor for descriptor, _ in gone.poll(0)}
            for reader in [reader for reader in self._readers if reader.fileno() in ended]:
                self._readers.remove(reader)
                reader.close()
        return self._about

    def connect(self, description: bytes) -> ShmRoute:
        try:
            about = msgspec.msgpack.decode(description, type=Description)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LMCacheError(f"not a description of a segment: {error}") from None
        return ShmRoute(self, Segment(about))

    def completions(self) -> CompletionQueue:
        return self._queue

    def close(self, deadline_seconds: float) -> None:
        with self._lock:
            self._closed = True
            for each in (self._listener, *self._readers):
                each.close()
            self._readers = []
        self._ended = self._engine.close(deadline_seconds)
        self._wakes.wake()
        self._thread.join(deadline_seconds)

    def copy(self, segment: Segment | None, reads: Sequence[RemoteRead]) -> JobId:
        """As `Route.submit_read`; without a segment they fail."""
        job = Job(JobId(next(self._numbers)), len(reads), segment)
        operations = []
        if segment is not None and segment.has_owner:
            for place, (offset, buffer) in enumerate(reads):
                if not segment.has(offset, buffer.length):
                    job.outcomes[place] = Outcome.MISSING
                    continue
                token = next(self._tokens)
                self._copies[token] = job, place
                source, start = segment.address + offset, HEADER_BYTES if buffer.length > HEADER_BYTES else NO_DIGEST
                operations.append((COPY, token, source, buffer.address, buffer.length, 0, start))
        job.left = len(operations)
        try:
            if operations:
                self._engine.submit(operations)
                return job.id
        except RuntimeError:  # it is closed
            for _, token, *_ in operations:
                del self._copies[token]
        self._queue.post(job.done())
        return job.id

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._engine.fileno(), select.POLLIN)
        poll.register(self._wakes.fileno(), select.POLLIN)
        while not self._ended:
            poll.poll()
            self._take_answers()
        self._take_answers()

    def _take_answers(self) -> None:
        for token, result, digest in self._engine.answers():
            job, place = self._copies.pop(token)
            if result >= 0:
                job.outcomes[place], job.digests[place] = Outcome.DONE, digest
            job.left -= 1
            if not job.left:
                self._queue.post(job.done())


class ShmRoute(Route):
    def __init__(self, channel: ShmChannel, segment: Segment) -> None:
        self._channel = channel
        self._segment: Segment | None = segment

    def submit_read(self, secret: bytes, reads: Sequence[RemoteRead]) -> JobId:
        return self._channel.copy(self._segment, reads)

    def close(self) -> None:
        """Copies under way come to their end: they take milliseconds, and the mapping stays until then."""
        self._segment = None


def _machine() -> str:
    return BOOT_ID.read_text().strip()


def _connected(about: Description) -> socket.socket:
    """To the owner, whose process is this user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect(f"\0{about.socket}")
        if (user := _user_of(connection)) != os.geteuid():
            raise LMCacheError(f"a process of user {user} listens there")
    except (OSError, ValueError, LMCacheError) as error:
        connection.close()
        raise LMCacheError(f"the owner of the segment {about.name[:64]} cannot be reached: {error}") from None
    return connection


def _opened(about: Description, owner: socket.socket) -> int:
    """By its name, or by the owner's descriptor of it, where the kernel lets this process see that one.  Raises OSError."""
    try:
        return os.open(SHM_ROOT / about.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if about.descriptor < 0:
            raise
    place = f"/proc/{_credentials_of(owner)[0]}/fd/{about.descriptor}"
    # It may be anything, until it is compared: nothing here waits for it.
    return os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _credentials_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at its other end, as the kernel says."""
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(process), int(user)


def _user_of(connection: socket.socket) -> int:
    return _credentials_of(connection)[1]


def _mapped(descriptor: int, length: int) -> int:
    """The address.  The mmap module gives none of what cannot be written to.  Raises OSError."""
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    assert isinstance(address, int)
    return address


def _release(address: int, length: int, descriptor: int, connection: socket.socket) -> None:
    _libc.munmap(address, length)
    os.close(descriptor)
    connection.close()
