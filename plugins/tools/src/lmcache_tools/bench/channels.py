"""Transfer channels between two processes: one that has objects in memory like L1's, and one that reads them.

The process with the objects listens at one address and sends each client a line of JSON: what the channel says of itself, the
secret of a lease of everything, and the digest of each object.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from lmcache_client.errors import LMCacheError, ProtocolError
from lmcache_core import HEADER_BYTES, BorrowedBuffer, ChannelContext, JobDone, Outcome, RemoteRead, SystemClock
from lmcache_core.app.offer_specs import offer_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.transfer_channel import SECRET_BYTES, TransferChannel
from lmcache_core.model.object_header import digest
from lmcache_tools.bench.memory import BenchMemory, bench_memory

ALIGN_BYTES: Final = 4096
OBJECTS_PER_JOB: Final = 8
JOBS: Final = 2
"""At a time."""
CLOSE_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
LINE_BYTES_MAX: Final = 16 << 20
_STAMP_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2


class Side:
    """A channel and the memory that it reads from or into."""

    def __init__(self, name: str, channel: TransferChannel, memory: BenchMemory) -> None:
        self.name, self.channel, self.memory = name, channel, memory
        self.region = memory.arena.region


@contextmanager
def open_side(
    plugins: LoadedPlugins, name: str, settings: Mapping[str, Any], host: str, size_bytes: int, where: str
) -> Iterator[Side]:
    """`host`: the address of this machine at which the channel may listen.  `where` begins errors about the settings.  Raises
    LMCacheError."""
    spec = offer_spec(plugins, OfferKind.TRANSFER_CHANNEL, name, settings, where)
    with bench_memory(size_bytes) as memory:
        logger = logging.getLogger(f"lmcache.transfer.{name}")
        context = ChannelContext(memory.arena.region, host, secrets.token_hex(16), SystemClock(), logger)
        channel: TransferChannel = spec.open_as(TransferChannel, plugins, context)
        try:
            yield Side(name, channel, memory)
        finally:
            channel.close(CLOSE_SECONDS)


class Offered(msgspec.Struct, frozen=True):
    """The line that a client gets."""

    channel: str
    description: bytes
    secret: bytes
    object_bytes: int
    digests: list[bytes]


class Objects(NamedTuple):
    """Of one size, one behind the other."""

    size: int
    number: int

    @property
    def stride(self) -> int:
        return -(-self.size // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def total(self) -> int:
        return self.stride * self.number

    def fill(self, view: memoryview, seed: int) -> list[bytes]:
        """Write them: noise, and a number in each MiB.  Returns the digest of each, as in its header."""
        noise, digests = Random(seed).randbytes(_STAMP_BYTES), []
        for number in range(self.number):
            own = view[number * self.stride : number * self.stride + self.size]
            for at in range(0, self.size, _STAMP_BYTES):
                part = own[at : at + _STAMP_BYTES]
                part[:] = (number.to_bytes(8, "little") + noise[8:])[: len(part)]
            digests.append(digest(own[HEADER_BYTES:]))
        return digests


def serve(listener: socket.socket, side: Side, objects: Objects, seed: int, is_over: Callable[[float], bool]) -> None:
    """One client after the other, until `is_over`, which gets the seconds without one."""
    digests = objects.fill(side.region.view, seed)
    listener.settimeout(_LOOK_SECONDS)
    idle_since = time.monotonic()
    while not is_over(time.monotonic() - idle_since):
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        secret = secrets.token_bytes(SECRET_BYTES)
        side.channel.expose(secret, [(0, objects.total)])
        offered = Offered(side.name, side.channel.describe(), secret, objects.size, digests)
        with client:
            client.settimeout(_LOOK_SECONDS)
            _answer(client, msgspec.json.encode(offered) + b"\n", is_over)
        side.channel.hide(secret)
        idle_since = time.monotonic()


def _answer(client: socket.socket, line: bytes, is_over: Callable[[float], bool]) -> None:
    """Returns when the client has closed the connection."""
    try:
        client.settimeout(SILENCE_SECONDS)
        client.sendall(line)
        client.settimeout(_LOOK_SECONDS)
        while not is_over(0.0):
            try:
                if not client.recv(1):
                    return
            except TimeoutError:
                continue
    except OSError:
        return  # it has gone


def offered_by(server: socket.socket) -> Offered:
    """What the process at the other end has.  Raises LMCacheError."""
    server.settimeout(SILENCE_SECONDS)
    line = bytearray()
    try:
        while not line.endswith(b"\n"):
            part = server.recv(1 << 16)
            if not part or len(line) > LINE_BYTES_MAX:
                raise ProtocolError("what answers there is not `lmcache bench transfer --role server`")
            line += part
        return msgspec.json.decode(line, type=Offered)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"what answers there is not `lmcache bench transfer --role server`: {error}") from None


class Read(NamedTuple):
    """Where an object is in the other process's memory, and where it goes here."""

    remote: int
    local: int
    length: int


class Reader:
    """Of one other process.  One thread."""

    def __init__(self, side: Side, description: bytes, secret: bytes) -> None:
        """Raises LMCacheError where the channel cannot connect."""
        self.region, self._channel, self._secret = side.region, side.channel, secret
        self._route = side.channel.connect(description)
        self._poll = select.poll()
        self._poll.register(side.channel.completions().fileno(), select.POLLIN)

    def close(self) -> None:
        self._route.close()

    def read(self, reads: Sequence[Read]) -> list[bytes]:
        """Their digests, once all are in memory: from the channel where it computes them, and else by this thread.  Jobs are as
        a prefetch has them.  Raises LMCacheError for an object that does not come."""
        found = dict[int, bytes]()
        under_way = dict[int, Sequence[Read]]()
        waiting = [reads[first : first + OBJECTS_PER_JOB] for first in range(0, len(reads), OBJECTS_PER_JOB)]
        waiting.reverse()
        while waiting or under_way:
            while waiting and len(under_way) < JOBS:
                job = waiting.pop()
                buffers = [BorrowedBuffer(self.region, each.local, each.length) for each in job]
                remote = [RemoteRead(each.remote, buffer) for each, buffer in zip(job, buffers, strict=True)]
                under_way[self._route.submit_read(self._secret, remote)] = job
            if not self._poll.poll(SILENCE_SECONDS * 1000):
                raise LMCacheError(f"no object has come for {SILENCE_SECONDS:.0f} s")
            for done in self._channel.completions().drain():
                if isinstance(done, JobDone):
                    self._take(done, under_way.pop(done.job), found)
        return [found[each.local] for each in reads]

    def _take(self, done: JobDone, job: Sequence[Read], found: dict[int, bytes]) -> None:
        computed = getattr(done, "digests", None) or [None] * len(job)
        for each, outcome, own in zip(job, done.outcomes, computed, strict=True):
            if outcome is not Outcome.DONE:
                raise LMCacheError(f"an object of {each.length} bytes was not read: {outcome.name.lower()}")
            begin, end = each.local + HEADER_BYTES, each.local + each.length
            found[each.local] = own or digest(self.region.view[begin:end])
