"""A reader, and owners that do what a test says; and an owner, and a client that says what a test wants."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import zmq

from lmcache_client.codec import OperationTable, encode_result
from lmcache_core import (
    ChannelContext,
    LeasedObject,
    LoadItem,
    ObjectKey,
    Outcome,
    SystemClock,
    TransferChannel,
)
from lmcache_devkit import Media, free_port
from lmcache_devkit.borrowed_memory import SPACE, BorrowedMemory
from lmcache_p2p.coordinators import Directory, Member
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.messages import OPERATIONS, Hello, PeerAddress, lease_secret, object_keys
from lmcache_p2p.reader import Reader
from lmcache_p2p.settings import PeerSettings, TcpSettings
from lmcache_p2p.shm_channel import ShmChannel
from lmcache_p2p.tcp_channel import TcpChannel

HOST: Final = "127.0.0.1"
PAYLOAD: Final = 4096
SILENT: Final = object()
"""What a script returns for a request that is not answered."""
ABOUT: Final = Hello(instance="reader", boot_id="r" * 32, chunk_tokens=16, chain="blake3", test_vector="ab")


def key_of(number: int) -> ObjectKey:
    return ObjectKey(SPACE, number.to_bytes(32, "little"))


def payload_of(number: int) -> bytes:
    return number.to_bytes(2, "little") * (PAYLOAD // 2)


def tcp(memory: BorrowedMemory, boot_id: str, **settings: Any) -> TcpChannel:
    context = ChannelContext(memory.region, HOST, boot_id.ljust(32, "0"), SystemClock(), logging.getLogger("tcp"))
    return TcpChannel(TcpSettings.model_validate({"load_timeout": 2.0, **settings}), context)


def shm(memory: BorrowedMemory, boot_id: str) -> ShmChannel:
    context = ChannelContext(memory.region, HOST, boot_id.ljust(32, "0"), SystemClock(), logging.getLogger("shm"))
    return ShmChannel(None, context)


Openers = Mapping[str, Callable[[BorrowedMemory, str], TransferChannel]]
TCP: Final[Openers] = {"tcp": tcp}
BOTH: Final[Openers] = {"shm": shm, "tcp": tcp}


class Twice:
    """An answer that is sent two times."""

    def __init__(self, result: Any) -> None:
        self.result = result


class ScriptedOwner:
    """Has the objects 0 to `objects` - 1 in its memory, and answers as `script` says: a function by the name of the operation,
    which gets the arguments and what would be right.  Without a script it does everything right."""

    def __init__(self, name: str = "owner", objects: int = 8, size: int = 8 << 20, channels: Openers = TCP) -> None:
        self.name, self.script = name, dict[str, Callable[[Any, Any], Any]]()
        self.memory = BorrowedMemory(size, shared="shm" in channels)
        self.objects = {key_of(each): self.memory.sealed(key_of(each), payload_of(each)) for each in range(objects)}
        self.channels = {each: opened(self.memory, name) for each, opened in channels.items()}
        self.keys = KeyPair.new()
        self.endpoint = f"tcp://{HOST}:{free_port()}"
        self.session = b"s" * 32
        self.tasks: dict[int, list[PeerAddress]] = {}
        self.asked: list[str] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._bound = threading.Event()

    @property
    def member(self) -> Member:
        return Member(self.name, PeerUrl(self.endpoint, self.keys.public))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)
        for channel in self.channels.values():
            channel.close(1.0)
        self.memory.close()

    def _run(self) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.curve_server = True
        router.curve_secretkey, router.curve_publickey = self.keys.secret, self.keys.public
        router.bind(self.endpoint)
        self._bound.set()
        table = OperationTable(OPERATIONS)
        while not self._stopping.is_set():
            if not router.poll(20):
                continue
            identity, uid, operation, *payload = router.recv_multipart()
            codec = table.find(operation)
            arguments = codec.decode_payload(payload)
            name = codec.operation.name.removeprefix("p2p_")
            self.asked.append(name)
            right = getattr(self, f"_{name}")(*arguments)
            said = self.script.get(name, lambda _, right: right)(arguments, right)
            for _ in range(2 if isinstance(said, Twice) else 1):
                result = said.result if isinstance(said, Twice) else said
                if result is not SILENT:
                    router.send_multipart([identity, uid, operation, *encode_result(result)])
        router.close()
        self._context.term()

    def _hello(self, says: Hello) -> Hello:
        about = msgspec.structs.replace(says, instance=self.name, boot_id=self.name, secret=self.session)
        return msgspec.structs.replace(about, channels={name: each.describe() for name, each in self.channels.items()})

    def _lookup_and_lock(self, keys: Sequence[Any], layouts: Any) -> int:
        number = len(self.tasks) + 1
        found = [None if key is None else self.objects.get(key) for key in object_keys(keys)]
        self.tasks[number] = [
            PeerAddress(-1, 0) if not each else PeerAddress(each.offset, each.length) for each in found
        ]
        extents = [(each.offset, each.size) for each in self.tasks[number] if each.size]
        for channel in self.channels.values():
            channel.expose(lease_secret(self.session, number), extents)
        return number

    def _query_lookup_results(self, task: int) -> list[PeerAddress]:
        return self.tasks[task]

    def _renew(self, task: int) -> bool:
        return True

    def _end(self, task: int) -> None:
        for channel in self.channels.values():
            channel.hide(lease_secret(self.session, task))

    def _unlock_objects(self, keys: Any) -> None:
        pass


class PeerMedia(Media):
    """What an owner has in its memory."""

    def __init__(self, owner: ScriptedOwner) -> None:
        self._owner = owner

    def read(self, key: ObjectKey) -> bytes | None:
        buffer = self._owner.objects.get(key)
        return None if buffer is None else bytes(buffer.view)

    def write(self, key: ObjectKey, data: bytes) -> None:
        buffer = self._owner.memory.lend(len(data))
        buffer.view[:] = data
        self._owner.objects[key] = buffer

    def remove(self, key: ObjectKey) -> None:
        self._owner.objects.pop(key, None)


class FakeDirectory(Directory):
    """Says that all of these have everything."""

    def __init__(self, *members: Member) -> None:
        super().__init__((), "reader")
        self.members = members

    def owners(self, keys: Sequence[ObjectKey]) -> list[tuple[Member, ...]]:
        self.asked += 1
        return [self.members] * len(keys)

    def found_there(self) -> list[tuple[str, int, int]]:
        """What the next question would say: of each peer, how many were asked for and not there."""
        return [(found.instance, found.asked, found.stale) for found in self._found]


def wait(good: Callable[[], Any]) -> None:
    until = time.monotonic() + 10
    while not good():
        assert time.monotonic() < until
        time.sleep(0.01)


def assert_equations(name: str, counts: Mapping[str, float]) -> None:
    """Those of docs/operate/counts.md, of what a reader counts of one peer."""
    outcomes = [counts[each] for each in ("leased", "stale", "refused", "unanswered")]
    assert counts["asked"] == sum(outcomes), (name, counts)
    assert counts["hit"] <= counts["leased"], (name, counts)
    assert counts["submitted"] == counts["read"] + counts["damaged"] + counts["unread"], (name, counts)


class ReaderRig:
    """A reader of these owners, with memory of its own."""

    def __init__(
        self, *owners: ScriptedOwner, channels: Openers = TCP, directory: Directory | None = None, **settings: Any
    ) -> None:
        """`directory`: in place of one that says that all of these have everything."""
        self.memory = BorrowedMemory(16 << 20, shared="shm" in channels)
        self.channels = {name: opened(self.memory, "reader") for name, opened in channels.items()}
        self.directory = FakeDirectory(*(owner.member for owner in owners))
        values = {"advertise_url": "tcp://127.0.0.1:1", "listen_url": "tcp://127.0.0.1:1", "lookup_timeout": 0.5}
        made = PeerSettings.model_validate({**values, **settings})
        about = msgspec.structs.replace(ABOUT, lease_seconds=made.lease_seconds)
        named = {owner.name: owner.member for owner in owners}.get
        self.reader = Reader(
            directory or self.directory, self.channels, about, KeyPair.new(), made, SystemClock(), named
        )
        self._thread = threading.Thread(target=self.reader.run, daemon=True)
        self.reported: dict[int, Outcome] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait(self._has_counted)
        for name, counts in self.reader.counts_by_peer().items():
            assert_equations(name, counts)
        total = self.reader.counts
        assert total["requested"] == total["hit"] + total["missed"]
        self.reader.stop()
        self._thread.join(10)
        assert not self._thread.is_alive()
        for channel in self.channels.values():
            channel.close(1.0)
        self.memory.close()

    def _has_counted(self) -> bool:
        """A lookup that ends in time-out is answered, and said in the log, before it is counted."""
        return all(
            each["asked"] == each["leased"] + each["stale"] + each["refused"] + each["unanswered"]
            for each in self.reader.counts_by_peer().values()
        )

    def lookup(self, *numbers: int) -> list[Outcome]:
        keys = [key_of(number) for number in numbers]
        return asyncio.run_coroutine_threadsafe(self.reader.lookup(keys), self.reader.loop).result(20)

    def load(self, *numbers: int) -> list[Outcome]:
        """The outcomes; where one is DONE, the bytes were right."""
        items = [LoadItem(key_of(number), self.memory.lend(4096 + PAYLOAD)) for number in numbers]
        work = self.reader.load(items, self.reported.__setitem__)
        outcomes = asyncio.run_coroutine_threadsafe(work, self.reader.loop).result(20)
        for number, item, outcome in zip(numbers, items, outcomes, strict=True):
            if outcome is Outcome.DONE:
                assert bytes(item.buffer.view[4096:]) == payload_of(number), "never a wrong byte"
        return outcomes

    def unpin(self, *numbers: int) -> None:
        self.reader.loop.call_soon_threadsafe(self.reader.unpin, [key_of(number) for number in numbers])

    def reject(self, number: int) -> None:
        self.reader.loop.call_soon_threadsafe(self.reader.lessee.reject, key_of(number), None)

    def counts(self, name: str = "owner") -> dict[str, Any]:
        said: dict[str, Any] = self.reader.status()["peers"][name]
        return said


class FakeLease:
    """A `ReadLease` without memory."""

    def __init__(self, objects: Sequence[LeasedObject | None]) -> None:
        self.objects, self.ended = list(objects), False

    @property
    def size_bytes(self) -> int:
        return 0 if self.ended else sum(each.length for each in self.objects if each is not None)

    def renew(self, seconds: float) -> bool:
        return not self.ended

    def release(self, places: Sequence[int]) -> None:
        for place in places:
            self.objects[place] = None

    def end(self) -> None:
        self.ended = True
