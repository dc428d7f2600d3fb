"""An owner whose memory, addresses and leases go wrong while a reader reads them: by each channel, and counted by kind."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from unittest import mock

import msgspec

from lmcache_core import HEADER_BYTES, BorrowedBuffer, LoadItem, ObjectKey, Outcome, TransferChannel
from lmcache_core.model.object_header import seal
from lmcache_devkit.borrowed_memory import UNWRITTEN, BorrowedMemory, payload_of
from lmcache_p2p.messages import Hello, PeerAddress, lease_secret
from lmcache_p2p.tcp_channel import Description, TcpChannel
from plugins.p2p.tests.rig import ReaderRig, ScriptedOwner, key_of
from tests.remote.tcp_proxy import Flip, TcpProxy, Way

OBJECTS: Final = 192
"""Of one job."""
SIZES: Final = (4096, 4096, 4096, 16_384, 65_536 - HEADER_BYTES)
"""Of payloads."""
RIGHT_SHARE: Final = 0.1
MISSES: Final = frozenset({Outcome.DAMAGED, Outcome.FOREIGN, Outcome.MISSING, Outcome.FAILED})


class Thing(NamedTuple):
    """An object, as it should be, and where it lies."""

    key: ObjectKey
    source: BorrowedBuffer
    target: BorrowedBuffer
    content: bytes
    other: bytes
    """An object of the same length and another key, whole."""


def sealed(number: int, length: int) -> bytes:
    run = bytearray(length)
    run[HEADER_BYTES:] = payload_of(number, length - HEADER_BYTES)
    seal(memoryview(run), key_of(number), 1)
    return bytes(run)


# --- faults of one object: what lies in the owner's memory in its place


def flipped(thing: Thing, chooser: random.Random) -> bytes:
    data = bytearray(thing.content)
    data[_place(thing, chooser)] ^= 1 << chooser.randrange(8)
    return bytes(data)


def torn(thing: Thing, chooser: random.Random) -> bytes:
    """Only its beginning was written."""
    end = _place(thing, chooser)
    return thing.content[:end] + UNWRITTEN * (len(thing.content) - end)


def mixed(thing: Thing, chooser: random.Random) -> bytes:
    """Its slot was used again, as far as that has come."""
    end = _place(thing, chooser)
    return thing.other[:end] + thing.content[end:]


def stale(thing: Thing, chooser: random.Random) -> bytes:
    return thing.other


def stale_payload(thing: Thing, chooser: random.Random) -> bytes:
    return thing.content[:HEADER_BYTES] + thing.other[HEADER_BYTES:]


def wrong_header(thing: Thing, chooser: random.Random) -> bytes:
    """Right bytes behind a whole header of another key, or of another length."""
    if chooser.random() < 0.5:
        return thing.other[:HEADER_BYTES] + thing.content[HEADER_BYTES:]
    shorter = bytearray(thing.content[:-512])
    seal(memoryview(shorter), thing.key, 1)
    return bytes(shorter) + thing.content[-512:]


def no_header(thing: Thing, chooser: random.Random) -> bytes:
    return bytes(HEADER_BYTES) + thing.content[HEADER_BYTES:]


def _place(thing: Thing, chooser: random.Random) -> int:
    return chooser.randrange(HEADER_BYTES) if chooser.random() < 0.4 else chooser.randrange(len(thing.content))


OBJECT_FAULTS: Final[Sequence[Callable[[Thing, random.Random], bytes]]] = (
    flipped,
    torn,
    mixed,
    stale,
    stale_payload,
    wrong_header,
    no_header,
)


class Faults:
    """Of one job: what is wrong with which object."""

    def __init__(self, what: Mapping[int, str], *, surely: bool = True, harms_all: bool = False) -> None:
        """`surely`: it cannot be right by chance.  `harms_all`: others may be missing, too."""
        self.what, self.surely, self.harms_all = what, surely, harms_all


class Site:
    """An owner and a reader with one channel between them.  `run` gives what it says to `counts`: the faults of each kind,
    and what became of them."""

    def __init__(self, name: str, opener: Callable[[BorrowedMemory, str], TransferChannel], seed: int) -> None:
        """`opener` opens a channel of this name."""
        self.chooser, self.counts = random.Random(seed), Counter[str]()
        self._opener = opener
        self._name = name
        self.owner = ScriptedOwner(objects=0, size=24 << 20, channels={self._name: opener})
        self.rig = ReaderRig(self.owner, channels={self._name: opener}, lookup_timeout=20)
        self.things = []
        for number in range(OBJECTS):
            length = HEADER_BYTES + self.chooser.choice(SIZES)
            source = self.owner.memory.lend(length)
            self.owner.objects[key_of(number)] = source
            target, other = self.rig.memory.lend(length), sealed(number + 10_000, length)
            self.things.append(Thing(key_of(number), source, target, sealed(number, length), other))
        self.hidden = self.owner.memory.sealed(key_of(99_999), payload_of(99_999, SIZES[0]))
        self._restore()
        self._jobs: dict[str, Callable[[], AbstractContextManager[Faults]]] = {
            "objects": self._objects,
            "used_again": self._used_again,
            "swapped": self._swapped,
            "short": self._short,
            "outside": self._outside,
            "ended_lease": self._ended_lease,
            "restarted": self._restarted,
        }
        if self._name == "tcp":  # the others have neither
            self._jobs |= {"forged_secret": self._forged_secret, "wire": self._wire}

    @property
    def _channel(self) -> TransferChannel:
        return self.owner.channels[self._name]

    def __enter__(self) -> Self:
        self.owner.__enter__()
        self.rig.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rig.__exit__(kind, error, trace)
        self.owner.__exit__(kind, error, trace)

    def run(self, faults: int) -> None:
        """That many at least, of every kind.  Each object that is loaded is right, each other one a miss, and counted."""
        names = list(self._jobs)
        while self.counts.total() < faults:
            names = names or list(self._jobs)
            self._job(names.pop(self.chooser.randrange(len(names))))

    def _job(self, name: str) -> None:
        for thing in self.things:
            thing.target.view[:] = UNWRITTEN * thing.target.length
        before = self._missed()
        with self._jobs[name]() as faults:
            outcomes = self._call(
                self.rig.reader.load([LoadItem(thing.key, thing.target) for thing in self.things], print)
            )
        for number, (thing, outcome) in enumerate(zip(self.things, outcomes, strict=True)):
            if outcome is Outcome.DONE:
                assert thing.target.view == thing.content, f"{name}: a wrong byte"
            what = faults.what.get(number)
            if what is not None and faults.surely:
                assert outcome in MISSES, f"{name}: {what} is {outcome}"
            elif what is None and not faults.harms_all:
                assert outcome is Outcome.DONE, f"{name}: nothing was wrong, and it is {outcome}"
            if outcome is not Outcome.DONE:
                self.counts[f"{what or name}: {outcome.value}"] += 1
        missed = sum(outcome is not Outcome.DONE for outcome in outcomes)
        assert self._missed() - before == missed, f"{name}: not all are counted"
        self.rig.reader.loop.call_soon_threadsafe(self.rig.reader.unpin_all)
        self._restore()

    def _missed(self) -> int:
        counts = self.rig.reader.counts_by_peer().get("owner", {})
        return sum(int(counts.get(each, 0)) for each in ("damaged", "unread"))

    def _call(self, work: Coroutine[Any, Any, list[Outcome]]) -> list[Outcome]:
        return asyncio.run_coroutine_threadsafe(work, self.rig.reader.loop).result(60)

    def _lookup(self) -> None:
        """All are leased."""
        outcomes = self._call(self.rig.reader.lookup([thing.key for thing in self.things]))
        assert outcomes == [Outcome.DONE] * OBJECTS, Counter(outcomes)

    def _restore(self) -> None:
        for thing in self.things:
            thing.source.view[:] = thing.content
        self.owner.script.clear()

    def _reconnect(self) -> None:
        """A new session for the next job."""
        (peer,) = self.rig.reader.peers
        self.rig.reader.loop.call_soon_threadsafe(peer.failed, "a new session", 0.0)

    def _some(self) -> list[int]:
        return [number for number in range(OBJECTS) if self.chooser.random() > RIGHT_SHARE]

    # --- jobs: what is wrong while objects are read

    @contextmanager
    def _objects(self) -> Iterator[Faults]:
        self._lookup()
        what = {}
        for number in self._some():
            thing, fault = self.things[number], self.chooser.choice(OBJECT_FAULTS)
            data = fault(thing, self.chooser)
            if data != thing.content:
                thing.source.view[:] = data
                what[number] = fault.__name__
        yield Faults(what)

    @contextmanager
    def _used_again(self) -> Iterator[Faults]:
        """Slots get another object and their own again, while they are read."""
        self._lookup()
        ended = threading.Event()
        things = sorted(self.things, key=lambda thing: -thing.source.length)[:16]

        def change() -> None:
            while not ended.is_set():
                thing = self.chooser.choice(things)
                thing.source.view[:] = thing.other
                thing.source.view[:] = thing.content

        thread = threading.Thread(target=change)
        thread.start()
        try:
            yield Faults({}, harms_all=True)
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def _swapped(self) -> Iterator[Faults]:
        """The owner gives the address of another leased object of the same length."""
        by_length: dict[int, list[int]] = {}
        for number in self._some():
            by_length.setdefault(self.things[number].source.length, []).append(number)
        taken: dict[int, int] = {}
        for numbers in by_length.values():
            if len(numbers) > 1:
                taken |= dict(zip(numbers, numbers[1:] + numbers[:1], strict=True))
        self._say(lambda right: [right[taken.get(number, number)] for number in range(OBJECTS)])
        self._lookup()
        yield Faults(dict.fromkeys(taken, "swapped"))

    @contextmanager
    def _short(self) -> Iterator[Faults]:
        """The owner says that it is shorter, or longer."""
        some = set(self._some())
        sizes = (HEADER_BYTES, 1, 4095, 1 << 40, (1 << 64) - 1)

        def change(right: list[PeerAddress]) -> list[PeerAddress]:
            return [
                PeerAddress(each.offset, self.chooser.choice(sizes)) if number in some else each
                for number, each in enumerate(right)
            ]

        self._say(change)
        self._lookup()
        yield Faults(dict.fromkeys(some, "short"))

    @contextmanager
    def _outside(self) -> Iterator[Faults]:
        """The owner gives addresses that the lease does not cover.  `tcp` cuts the reader off."""
        some = set(self._some())
        length = self.owner.memory.region.length
        places = (self.hidden.offset, length - 4096, length, 1 << 40, (1 << 63) - 1, (1 << 63) - 8192)

        def change(right: list[PeerAddress]) -> list[PeerAddress]:
            return [
                PeerAddress(self.chooser.choice(places), each.size) if number in some else each
                for number, each in enumerate(right)
            ]

        self._say(change)
        self._lookup()
        yield Faults(dict.fromkeys(some, "outside"), harms_all=True)

    @contextmanager
    def _forged_secret(self) -> Iterator[Faults]:
        """The reader brings the secret of a lease that there is not."""
        self._lookup()
        for lease in self.rig.reader.lessee.leases:
            lease.number += 1_000_000
        yield Faults(dict.fromkeys(range(OBJECTS), "forged_secret"))

    @contextmanager
    def _ended_lease(self) -> Iterator[Faults]:
        """The lease has ended, and its slots are used again."""
        self._lookup()
        self._channel.hide(lease_secret(self.owner.session, len(self.owner.tasks)))
        for thing in self.things:
            thing.source.view[:] = thing.other
        yield Faults(dict.fromkeys(range(OBJECTS), "ended_lease"))

    @contextmanager
    def _restarted(self) -> Iterator[Faults]:
        """Another start listens where the owner did, has leased the same, and has other objects there."""
        self._lookup()
        before = self._channel
        with ExitStack() as stack:
            if isinstance(before, TcpChannel):
                address = before._server._listener.getsockname()
                right = socket.create_server
                listen: Any = lambda _, **options: right(address, **options)  # noqa: E731
                stack.enter_context(mock.patch.object(socket, "create_server", listen))
            before.close(5.0)
            again = self._opener(self.owner.memory, f"start-{self.counts.total()}")
        self.owner.channels[self._name] = again
        extents = [(thing.source.offset, thing.source.length) for thing in self.things]
        again.expose(lease_secret(self.owner.session, len(self.owner.tasks)), extents)
        for thing in self.things:
            thing.source.view[:] = thing.other
        yield Faults(dict.fromkeys(range(OBJECTS), "restarted"))
        self._reconnect()

    @contextmanager
    def _wire(self) -> Iterator[Faults]:
        """Bits flip on the way."""
        channel = self._channel
        assert isinstance(channel, TcpChannel)
        with TcpProxy(channel._server.port) as proxy:
            port = int(proxy.endpoint.rpartition(":")[2])

            def through(_: Any, right: Hello) -> Hello:
                about = msgspec.msgpack.decode(right.channels["tcp"], type=Description)
                said = msgspec.msgpack.encode(msgspec.structs.replace(about, port=port))
                return msgspec.structs.replace(right, channels={"tcp": said})

            self._reconnect()
            self.owner.script["hello"] = through
            self._lookup()
            proxy.switch(Flip(frozenset({Way.ANSWERS}), every_bytes=3000))
            yield Faults({}, harms_all=True)
        self._reconnect()

    def _say(self, change: Callable[[list[PeerAddress]], list[PeerAddress]]) -> None:
        self.owner.script["query_lookup_results"] = lambda _, right: change(right)
