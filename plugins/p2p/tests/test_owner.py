"""The owner's side: who is let in, what bad requests are answered, and that leases end."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_client.codec import OperationCodec
from lmcache_core import LeasedObject, ObjectKey, Operation, Storage, SystemClock
from lmcache_devkit import free_port
from lmcache_devkit.borrowed_memory import SPACE, BorrowedMemory
from lmcache_p2p import leases
from lmcache_p2p.coordinators import Members
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.leases import LEASE_SECONDS_MAX
from lmcache_p2p.messages import (
    END,
    HELLO,
    KEYS_MAX,
    LOOKUP_AND_LOCK,
    QUERY_LOOKUP_RESULTS,
    RENEW,
    UNLOCK_OBJECTS,
    PeerAddress,
    PeerKey,
)
from lmcache_p2p.metrics import KINDS, owner_samples
from lmcache_p2p.owner import Owner
from plugins.p2p.tests.rig import ABOUT, HOST, FakeLease, key_of, tcp

ABSENT = PeerAddress(-1, 0)
SIZE = 8192


class FakeStorage:
    """Has the objects 0 to 7, at their number times 8,192."""

    def __init__(self) -> None:
        self.leases: list[FakeLease] = []
        self.asked: list[tuple[str, float, int]] = []
        self.limited = set[int]()
        """Those that may not be leased."""
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def lease_reads(self, borrower: str, keys: Sequence[ObjectKey], seconds: float, max_bytes: int) -> FakeLease:
        assert self.may_go_on.wait(20)
        self.asked.append((borrower, seconds, max_bytes))
        numbers = [int.from_bytes(key.chunk_hash, "little") for key in keys]
        lease = FakeLease(
            [
                None if each >= 8 else LeasedObject(0, 0) if each in self.limited else LeasedObject(each * SIZE, SIZE)
                for each in numbers
            ]
        )
        self.leases.append(lease)
        return lease


class FakeMembers:
    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}

    def name_of(self, key: bytes) -> str | None:
        return self.names.get(key)


class Client:
    """A member, or what would like to be one."""

    def __init__(self, rig: Rig, keys: KeyPair, server_key: bytes | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_secretkey, self.socket.curve_publickey = keys.secret, keys.public
        self.socket.curve_serverkey = server_key or rig.keys.public
        self.socket.connect(rig.endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        self.context.term()

    def raw(self, *frames: bytes, seconds: float = 10.0) -> list[bytes] | None:
        """The answer; None: there is none within the time."""
        self.socket.send_multipart(frames)
        until = time.monotonic() + seconds
        while self.socket.poll(max(0, int((until - time.monotonic()) * 1000))):
            answer = self.socket.recv_multipart()
            if answer[0] == frames[0]:
                return answer
        return None

    def ask(self, operation: Operation, *payload: Any) -> Any:
        codec = OperationCodec(operation)
        answer = self.raw(b"1", codec.frame, *codec.encode_payload(payload))
        assert answer is not None, f"{operation.name} is not answered"
        return codec.decode_result(answer[2:])

    def hello(self, **changes: Any) -> Any:
        return self.ask(HELLO, msgspec.structs.replace(ABOUT, **changes))

    def lease(self, *numbers: int) -> tuple[int, Any]:
        task = self.ask(LOOKUP_AND_LOCK, [PeerKey.of(key_of(number)) for number in numbers], {})
        while (found := self.ask(QUERY_LOOKUP_RESULTS, task)) is None:
            pass
        return task, found


class Rig:
    def __init__(self) -> None:
        self.storage, self.members, self.keys = FakeStorage(), FakeMembers(), KeyPair.new()
        self.endpoint = f"tcp://{HOST}:{free_port()}"
        self.channel = tcp(BorrowedMemory(1 << 20), "owner")
        about = msgspec.structs.replace(ABOUT, instance="owner")
        self.owner = Owner(
            cast(Storage, self.storage),
            {"tcp": self.channel},
            about,
            cast(Members, self.members),
            10 * SIZE,
            SystemClock(),
        )
        self.owner.bind(self.endpoint, self.keys)
        self._threads = [threading.Thread(target=each) for each in (self.owner.run, self.owner.run_leases)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.storage.may_go_on.set()
        self.owner.stop()
        self.owner.close(5.0)
        for thread in self._threads:
            thread.join(10)
        self.channel.close(1.0)

    def member(self, name: str = "reader") -> Client:
        keys = KeyPair.new()
        self.members.names[keys.public] = name
        return Client(self, keys)

    def bad(self, name: str = "reader") -> int:
        return self.owner.counts[name, "bad"]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def reader(rig: Rig) -> Iterator[Client]:
    with rig.member() as client:
        assert client.hello().secret
        yield client


def wait(good: Callable[[], Any]) -> None:
    until = time.monotonic() + 10
    while not good():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_lookup_leases_what_is_there(rig: Rig, reader: Client) -> None:
    task, found = reader.lease(3, 99, 4)
    assert found == [PeerAddress(3 * SIZE, SIZE), ABSENT, PeerAddress(4 * SIZE, SIZE)]
    assert (rig.owner.leases, rig.owner.leased_bytes) == (1, 2 * SIZE)
    assert rig.storage.asked == [("reader", 15.0, 10 * SIZE)]
    assert reader.ask(RENEW, task) is True
    assert reader.ask(END, task) is None
    wait(lambda: rig.owner.leases == 0)
    assert rig.storage.leases[0].ended
    assert rig.bad() == 0


def test_counts_add_up(rig: Rig, reader: Client) -> None:
    reader.lease(1, 99)
    reader.lease(100)
    rig.storage.limited.add(2)
    reader.lease(2, 3)
    counts = rig.owner.counts_by_peer()["reader"]
    assert (counts["asked"], counts["leased"], counts["absent"], counts["limited"]) == (5, 2, 2, 1)
    assert {sample.name for sample in owner_samples(rig.owner.counts_by_peer())} <= {kind.name for kind in KINDS}


def test_all_leases_together_have_a_limit(rig: Rig, reader: Client) -> None:
    reader.lease(0, 1, 2)
    reader.lease(3)
    assert [left for _, _, left in rig.storage.asked] == [10 * SIZE, 7 * SIZE]


def test_results_are_given_once_and_to_the_caller_alone(rig: Rig, reader: Client) -> None:
    task, _ = reader.lease(0)
    assert reader.ask(QUERY_LOOKUP_RESULTS, task) == []
    assert reader.ask(QUERY_LOOKUP_RESULTS, 12345) == []
    with rig.member("other") as other:
        assert other.hello().secret
        assert other.ask(QUERY_LOOKUP_RESULTS, task) == []
        assert other.ask(RENEW, task) is False
        other.ask(END, task)
        other.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(0))])
    assert rig.owner.leases == 1
    assert (rig.bad(), rig.bad("other")) == (2, 3)


def test_results_are_not_given_to_another_member_before_its_own(rig: Rig, reader: Client) -> None:
    """Nor can it ask for them in its place."""
    task = reader.ask(LOOKUP_AND_LOCK, [PeerKey.of(key_of(0))], {})
    with rig.member("other") as other:
        assert other.hello().secret
        assert other.ask(QUERY_LOOKUP_RESULTS, task) == []
    wait(lambda: reader.ask(QUERY_LOOKUP_RESULTS, task) == [PeerAddress(0, SIZE)])


def test_results_that_are_not_there_yet_are_nil(rig: Rig, reader: Client) -> None:
    rig.storage.may_go_on.clear()
    task = reader.ask(LOOKUP_AND_LOCK, [PeerKey.of(key_of(0))], {})
    assert reader.ask(QUERY_LOOKUP_RESULTS, task) is None
    rig.storage.may_go_on.set()
    wait(lambda: reader.ask(QUERY_LOOKUP_RESULTS, task) == [PeerAddress(0, SIZE)])


def test_single_objects_are_unlocked(rig: Rig, reader: Client) -> None:
    reader.lease(0, 1)
    assert reader.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(0))]) is None
    wait(lambda: rig.owner.leased_bytes == SIZE)
    reader.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(1))])
    wait(lambda: rig.owner.leases == 0)


def test_lookups_that_overlap_keep_their_leases(rig: Rig, reader: Client) -> None:
    """Each mention of an object releases one of them, the oldest."""
    for numbers in ((0, 1), (0, 2)):
        reader.lease(*numbers)
    first, second = rig.storage.leases
    assert reader.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(0)), PeerKey.of(key_of(9))]) is None
    assert (first.size_bytes, second.size_bytes) == (SIZE, 2 * SIZE)
    assert rig.owner.leased_bytes == 3 * SIZE
    assert reader.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(number)) for number in (0, 1)]) is None
    assert (first.ended, second.size_bytes) == (True, SIZE)
    assert (rig.owner.leases, rig.owner.leased_bytes) == (1, SIZE)


def test_an_unlocked_object_is_not_read_and_the_others_are_all_the_time(
    rig: Rig, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer under way goes on."""
    exposed, hidden = list[Sequence[tuple[int, int]]](), list[bytes]()
    monkeypatch.setattr(rig.channel, "expose", lambda _, extents: exposed.append(extents))
    monkeypatch.setattr(rig.channel, "hide", hidden.append)
    reader.lease(0, 1, 2)
    reader.ask(UNLOCK_OBJECTS, [PeerKey.of(key_of(1))])
    assert exposed == [[(number * SIZE, SIZE) for number in numbers] for numbers in ((0, 1, 2), (0, 2))]
    assert hidden == []


def test_a_peer_has_a_limited_number_of_keys_at_one_time(
    rig: Rig, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of lookups that are not over; of one that is over nothing is kept, also where it waits for its lease."""
    monkeypatch.setattr(leases, "OPEN_KEYS_MAX", 4)
    rig.storage.may_go_on.clear()
    keys = [PeerKey.of(key_of(number)) for number in (0, 1, 99)]
    task = reader.ask(LOOKUP_AND_LOCK, keys, {})
    assert reader.ask(LOOKUP_AND_LOCK, keys[:2], {}) == -1
    assert reader.ask(LOOKUP_AND_LOCK, keys[:1], {}) > 0
    assert rig.bad() == 1
    waiting = [each for each in rig.owner._leases._tasks.values() if each.number != task]
    assert reader.hello().secret
    assert [each.keys for each in waiting] == [()]
    assert reader.ask(LOOKUP_AND_LOCK, [keys[0]] * 4, {}) > 0
    rig.storage.may_go_on.set()
    wait(lambda: rig.owner.leased_bytes == 4 * SIZE)
    assert reader.hello().secret
    wait(lambda: rig.owner.leased_bytes == 0)


def test_an_open_lease_costs_little_memory(rig: Rig) -> None:
    """Of the owner's, without the storage's."""
    count = 8192
    owned = rig.owner._leases
    session = owned.begin_session(b"key", "reader", ABOUT)
    found = [LeasedObject(number * SIZE, SIZE - 64) for number in range(count)]
    cast(Any, rig.storage).lease_reads = lambda *_: FakeLease(found)
    gc.collect()
    tracemalloc.start()
    try:
        keys = [PeerKey.of(ObjectKey(SPACE, number.to_bytes(32, "big"))) for number in range(count)]
        task = session.tasks[owned.lookup_and_lock(session, keys, {})]
        del keys
        wait(lambda: rig.channel._server._leases)
        assert len(owned.give(task)) == count
        cast(FakeLease, task.lease).objects = []
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] / count < 64
    finally:
        tracemalloc.stop()


class Flood:
    """A socket, and its one message, that comes as long as it is asked for."""

    def __init__(self) -> None:
        self.taken, self.bytes = 0, b""

    def recv_multipart(self, *_: Any, **__: Any) -> list[Flood]:
        self.taken += 1
        if self.taken > 5000:
            raise zmq.Again
        return [self]

    def get(self, _: str) -> str:
        return "a key of no member"


def test_a_flood_of_requests_leaves_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """To handshakes, deadlines, and what is to be answered."""
    flood, storage = Flood(), cast(Storage, FakeStorage())
    owner = Owner(storage, {}, ABOUT, cast(Members, FakeMembers()), 0, SystemClock())
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_router", flood)
        owner._take_requests()
    assert flood.taken == 64
    owner.close(1.0)


def test_too_many_keys_are_refused(rig: Rig, reader: Client) -> None:
    keys = [PeerKey.of(key_of(0))] * (KEYS_MAX + 1)
    assert reader.ask(LOOKUP_AND_LOCK, keys, {}) == -1
    assert rig.bad() == 1
    assert reader.lease(0)[1] == [PeerAddress(0, SIZE)], "it goes on"


def test_keys_of_another_kind_are_absent(rig: Rig, reader: Client) -> None:
    """As a public server would send them, without the fields that are ours."""
    task = reader.ask(LOOKUP_AND_LOCK, [PeerKey(bytes(32), "m", 1), PeerKey.of(key_of(1))], {0: {"shapes": []}})
    wait(lambda: reader.ask(QUERY_LOOKUP_RESULTS, task) == [ABSENT, PeerAddress(SIZE, SIZE)])


@pytest.mark.parametrize("field", ["version", "chunk_tokens", "chain", "test_vector"])
def test_one_that_does_not_fit_is_refused_with_both_values(
    rig: Rig, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    value: Any = 3 if field in ("version", "chunk_tokens") else "x"
    with rig.member() as client:
        said = client.hello(**{field: value})
        assert (said.secret, said.channels) == (b"", {})
        assert said.refused == f"{field} is {value} there and {getattr(ABOUT, field)} here"
        assert client.ask(LOOKUP_AND_LOCK, [], {}) == -1
    assert said.refused in caplog.text
    assert rig.bad() == 2


def test_without_a_hello_there_is_nothing(rig: Rig) -> None:
    with rig.member() as client:
        assert client.ask(LOOKUP_AND_LOCK, [PeerKey.of(key_of(0))], {}) == -1
        assert client.ask(QUERY_LOOKUP_RESULTS, 1) == []
        assert client.ask(RENEW, 1) is False
    assert rig.storage.asked == []


def test_a_key_that_is_not_a_members_gets_no_answer(rig: Rig) -> None:
    with Client(rig, KeyPair.new()) as client:
        assert client.raw(b"1", b"\x01", seconds=1.0) is None
    wait(lambda: rig.owner.counts["", "refused"] > 0)
    assert rig.storage.asked == []


def test_a_client_without_curve_gets_no_answer(rig: Rig) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(rig.endpoint)
        dealer.send_multipart([b"1", OperationCodec(HELLO).frame])
        assert not dealer.poll(1000)
    context.term()


def test_one_that_has_left_is_out_and_its_leases_end(rig: Rig, reader: Client) -> None:
    """Its connection is open, and its next request is not answered."""
    reader.lease(0)
    gone = frozenset(rig.members.names)
    rig.members.names.clear()
    rig.owner.members_left(gone)
    wait(lambda: rig.owner.leases == 0)
    assert rig.storage.leases[0].ended
    assert reader.raw(b"1", OperationCodec(RENEW).frame, b"\x01", seconds=0.5) is None


def test_one_that_never_gives_back_loses_its_lease_at_the_deadline(rig: Rig) -> None:
    with rig.member() as client:
        assert client.hello(lease_seconds=1.0).secret
        client.lease(0, 1)
        assert rig.storage.asked[0][1] == 1.0
        wait(lambda: rig.owner.leases == 0)
        assert rig.storage.leases[0].ended
        assert rig.owner.counts["reader", "expired"] == 2


def test_the_next_look_at_deadlines_is_at_the_first_of_them(rig: Rig, reader: Client) -> None:
    """So that no lease is read from after its own: the storage's deadline comes later, and only then its slots are used."""
    before = time.monotonic()
    reader.lease(0)
    with rig.member("other") as other:
        assert other.hello(lease_seconds=5.0).secret
        other.lease(1)
        assert before + 5.0 <= rig.owner._leases.expire(before) <= time.monotonic() + 5.0


def test_a_lease_is_no_longer_than_the_owner_allows(rig: Rig) -> None:
    with rig.member() as client:
        assert client.hello(lease_seconds=1e9).secret
        client.lease(0)
    assert rig.storage.asked[0][1] == LEASE_SECONDS_MAX


def test_a_second_hello_ends_what_was_before(rig: Rig, reader: Client) -> None:
    task, _ = reader.lease(0)
    assert reader.hello().secret
    wait(lambda: rig.owner.leases == 0)
    assert reader.ask(RENEW, task) is False
    assert rig.bad() == 1


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_whatever_a_member_sends_the_owner_goes_on(frames: list[bytes]) -> None:
    rig = _shared()
    client = rig.client
    client.socket.send_multipart([b"0", *frames])
    assert client.hello().secret is not None


class _Shared:
    def __init__(self) -> None:
        self.rig = Rig()
        self.client = self.rig.member("fuzzer")


_SHARED: list[_Shared] = []


def _shared() -> _Shared:
    if not _SHARED:
        _SHARED.append(_Shared())
    return _SHARED[0]


@pytest.fixture(scope="module", autouse=True)
def close_what_is_shared() -> Iterator[None]:
    yield
    for shared in _SHARED:
        with shared.client:
            shared.rig.close()
