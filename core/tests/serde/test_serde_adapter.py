"""What comes through serdes is the object that was stored, or it does not come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from core.tests.serde.serdes import MIB, Deflate, Xor, chain_of, wrapped
from lmcache_core.builtin.memory_l2 import MemoryAdapter, MemorySettings
from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.context import AdapterContext
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.layout import CompositeLayout, ObjectLayout
from lmcache_core.model.object_header import (
    HEADER_BYTES,
    NO_DIGEST,
    ObjectHeader,
    SerdeMark,
    check,
    digest,
    inspect,
    seal_encoded,
)
from lmcache_core.model.results import Outcome
from lmcache_core.serde.chain import PAD, SerdeChain
from lmcache_core.serde.known_layouts import KnownLayouts
from lmcache_core.serde.serde_adapter import SerdeAdapter
from lmcache_core.testing.l2_driver import L2Driver
from lmcache_core.testing.lent_memory import SPACE, LentMemory, adapter_context, object_key, payload_of

DONE, FOREIGN, DAMAGED = Outcome.DONE, Outcome.FOREIGN, Outcome.DAMAGED
FAILED, REJECTED, MISSING = Outcome.FAILED, Outcome.REJECTED, Outcome.MISSING
FLOATS = ObjectLayout(2, 2, 16, 32, "float32")
PAYLOAD = payload_of(1, 10_000)
KEY = object_key(1)


class Case:
    """One heap of objects, behind whatever chains a test wants."""

    def __init__(self, missing: Capability = Capability.NONE) -> None:
        self.memory = LentMemory(64 * MIB)
        self.context = adapter_context(self.memory)
        self.layouts = KnownLayouts()
        self.objects: dict[bytes, tuple[ObjectKey, bytes]] = {}
        self.more, self.missing = Capability.NONE, missing
        self.max_object_bytes: int | None = None
        self._drivers: list[L2Driver] = []

    def through(self, *links: Any, **how: Any) -> L2Driver:
        chain = links[0] if links and isinstance(links[0], SerdeChain) else chain_of(*links)
        driver = L2Driver(wrapped(self.context, self._open, chain, layouts=self.layouts, **how))
        self._drivers.append(driver)
        return driver

    def _open(self, context: AdapterContext) -> MemoryAdapter:
        adapter = MemoryAdapter(MemorySettings(), context)
        adapter._objects = self.objects
        adapter.capabilities = (adapter.capabilities | self.more) & ~self.missing
        adapter.max_object_bytes = self.max_object_bytes
        return adapter

    @property
    def stored(self) -> bytes:
        return self.objects[KEY.object_id][1]

    @stored.setter
    def stored(self, data: bytes) -> None:
        self.objects[KEY.object_id] = (KEY, data)

    def whole(self, key: ObjectKey = KEY, payload: bytes = PAYLOAD) -> tuple[ObjectKey, LentBuffer]:
        return key, self.memory.sealed(key, payload)

    def empty(self, key: ObjectKey = KEY, payload_bytes: int = len(PAYLOAD)) -> tuple[ObjectKey, LentBuffer]:
        return key, self.memory.lend(HEADER_BYTES + payload_bytes)

    def close(self) -> None:
        for driver in self._drivers:
            if not driver.closed:
                driver.close(5.0)


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.close()


def tally(driver: L2Driver) -> Any:
    assert isinstance(driver.adapter, SerdeAdapter)
    return driver.adapter.chain.tally


def test_what_is_stored_is_encoded_and_what_comes_back_is_a_plain_object(case: Case) -> None:
    driver = case.through("deflate")
    payload = bytes(10_000)
    assert driver.store(case.whole(payload=payload)) == (DONE,)
    assert len(case.stored) < HEADER_BYTES + 200
    _, buffer = item = case.empty()
    assert driver.load(item) == (DONE,)
    assert check(buffer.view, KEY).outcome is DONE
    assert bytes(buffer.view[HEADER_BYTES:]) == payload
    header = inspect(buffer.view[:HEADER_BYTES])
    assert isinstance(header, ObjectHeader)
    assert (header.serdes, header.created_ns) == ((), 1)


def test_what_it_promises_is_what_the_adapter_inside_promises(case: Case) -> None:
    case.more = Capability.ZERO_COPY | Capability.DURABLE
    expected = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE | Capability.VERIFIES
    assert case.through("deflate").adapter.capabilities == expected


def test_a_plain_object_is_foreign_where_serdes_are_configured(case: Case) -> None:
    """Or what nobody encrypted would be taken for what this server has encrypted."""
    _, buffer = case.whole()
    case.stored = bytes(buffer.view)
    driver = case.through("xor")
    assert driver.load(case.empty()) == (FOREIGN,)
    assert tally(driver).refusals() == {"other_chain": 1}


@pytest.mark.parametrize(
    "others",
    [("xor", "deflate"), ("deflate",), ("deflate", "xor", "xor"), ("deflate", "xor", "deflate")],
    ids=" then ".join,
)
def test_an_object_of_another_chain_is_foreign(case: Case, others: tuple[str, ...]) -> None:
    assert case.through(*others).store(case.whole()) == (DONE,)
    driver = case.through("deflate", "xor")
    assert driver.verified_load(case.empty()) == (FOREIGN,)
    assert driver.has(KEY) == (MISSING,), "it is offered again"
    assert case.stored, "what is foreign was not left alone"


def test_the_parameters_of_the_object_are_those_that_decode_is_given(case: Case) -> None:
    assert case.through(("xor", Xor(1))).store(case.whole()) == (DONE,)
    driver = case.through(("xor", Xor(2)))
    assert driver.load(case.empty()) == (DAMAGED,)
    assert tally(driver).rows()["xor", "decode"].failures == 1


def forged(case: Case, payload: bytes = PAYLOAD, **changed: Any) -> bytes:
    """What `xor` would store, with other words in its header."""
    stored = bytes(payload).translate(bytes(byte ^ 0x5A for byte in range(256)))
    run = bytearray(HEADER_BYTES) + bytearray(changed.pop("stored", stored))
    said: dict[str, Any] = {
        "payload_bytes": len(payload),
        "payload_digest": digest(payload),
        "serdes": [SerdeMark("xor", b"\x5a", len(payload))],
    }
    seal_encoded(memoryview(run), changed.pop("key", KEY), 7, **{**said, **changed})
    return bytes(run)


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, DONE),
        ({"key": object_key(2)}, FOREIGN),
        ({"payload_bytes": 9_999}, DAMAGED),
        ({"payload_digest": NO_DIGEST}, DAMAGED),
        ({"payload_digest": digest(b"other")}, DAMAGED),
        ({"serdes": [SerdeMark("xor", b"\x5a", 9_999)]}, DAMAGED),
        ({"serdes": [SerdeMark("xor", b"", 10_000)]}, DAMAGED),
        ({"serdes": [SerdeMark(PAD, b"", 10_000)]}, FOREIGN),
        ({"serdes": [SerdeMark("xor", b"\x5a", 10_000), SerdeMark(PAD, b"", 10_000)]}, DONE),
        ({"serdes": [SerdeMark("xor", b"\x5a", 10_000), SerdeMark(PAD, b"", 9_999)]}, DAMAGED),
        ({"serdes": [SerdeMark("xor", b"\x5a", 10_000), SerdeMark(PAD, b"", 10_001)]}, FOREIGN),
        ({"stored": b""}, DAMAGED),
        ({"stored": bytes(9_999)}, DAMAGED),
    ],
    ids=str,
)
def test_a_header_that_tells_something_else_is_not_believed(
    case: Case, changed: dict[str, Any], outcome: Outcome
) -> None:
    case.stored = forged(case, **changed)
    assert case.through("xor").load(case.empty()) == (outcome,)


def test_any_flipped_bit_of_what_is_stored_is_found(case: Case) -> None:
    driver = case.through("deflate")
    assert driver.store(case.whole()) == (DONE,)
    right = case.stored
    for at in (0, 9, 16, 60, 200, HEADER_BYTES - 1, HEADER_BYTES, len(right) // 2, len(right) - 1):
        wrong = bytearray(right)
        wrong[at] ^= 4
        case.stored = bytes(wrong)
        assert driver.load(case.empty())[0] in (DAMAGED, FOREIGN), f"a bit of byte {at}"
    case.stored = right
    assert driver.load(case.empty()) == (DONE,)


def test_a_lossless_serde_that_gives_back_something_else_is_found_out(case: Case) -> None:
    class Forgetful(Deflate):
        def decode(self, key: Any, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
            super().decode(key, layout, parameters, stored, into)
            into[len(into) // 2] ^= 1

    driver = case.through(("forgetful", Forgetful()))
    assert driver.store(case.whole()) == (DONE,)
    assert driver.load(case.empty()) == (DAMAGED,)


@pytest.mark.parametrize("where", ["encode", "decode", "stored_bytes_max", "parameters"])
def test_a_serde_that_raises_fails_its_object_alone(case: Case, where: str) -> None:
    """And no thread dies of it: the next object goes through."""
    serde = Deflate()
    driver = case.through(("moody", serde), workers=1)
    if where == "decode":
        assert driver.store(case.whole()) == (DONE,)
    armed = [True]
    right = getattr(serde, where)

    def moody(*arguments: Any) -> Any:
        if armed:
            armed.clear()
            raise SystemExit("injected")
        return right(*arguments)

    setattr(serde, where, moody)
    act: Callable[[], tuple[Outcome, ...]] = (
        (lambda: driver.load(case.empty())) if where == "decode" else (lambda: driver.store(case.whole()))
    )
    assert act() == (FAILED,)
    assert act() == (DONE,)


class TestLayouts:
    """Serdes that are made for numbers take chunks of one known shape."""

    key = ObjectKey(replace(SPACE, layout=FLOATS.fingerprint), bytes(32))
    numbers = b"".join(number.to_bytes(2, "little") + b"\0\x3f" for number in range(FLOATS.payload_bytes // 4))

    def test_an_unknown_layout_is_declined(self, case: Case) -> None:
        driver = case.through("half", "deflate")
        assert driver.store(case.whole(self.key, self.numbers)) == (REJECTED,)
        assert driver.load(case.empty(self.key, len(self.numbers))) == (FAILED,)
        assert tally(driver).refusals() == {"unknown_layout": 2}

    def test_one_of_several_shapes_is_declined(self, case: Case) -> None:
        layout = CompositeLayout((FLOATS, FLOATS))
        case.layouts.learn(layout)
        key = ObjectKey(replace(SPACE, layout=layout.fingerprint), bytes(32))
        assert case.through("half").store(case.whole(key, 2 * self.numbers)) == (REJECTED,)
        assert case.through("deflate").store(case.whole(key, 2 * self.numbers)) == (DONE,)

    def test_a_registered_one_goes_through_and_the_loss_is_declared(self, case: Case) -> None:
        case.layouts.learn(FLOATS)
        driver = case.through("half", "deflate")
        assert driver.store(case.whole(self.key, self.numbers)) == (DONE,)
        header = inspect(case.objects[self.key.object_id][1][:HEADER_BYTES])
        assert isinstance(header, ObjectHeader)
        assert header.payload_digest == NO_DIGEST
        _, buffer = item = case.empty(self.key, len(self.numbers))
        assert driver.load(item) == (DONE,)
        assert check(buffer.view, self.key).outcome is DONE
        assert bytes(buffer.view[HEADER_BYTES:]) != self.numbers

    def test_a_lossy_chain_stores_nothing_that_is_damaged_already(self, case: Case) -> None:
        case.layouts.learn(FLOATS)
        driver = case.through("half")
        _, buffer = item = case.whole(self.key, self.numbers)
        buffer.view[HEADER_BYTES + 9] ^= 1
        assert driver.store(item) == (DAMAGED,)
        assert driver.has(self.key) == (MISSING,)

    def test_a_layout_that_cannot_be_stored_is_told_when_it_is_registered(
        self, case: Case, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = case.through("half", memory_bytes=64 * 2**10)
        case.layouts.learn(FLOATS)
        assert caplog.text == ""
        case.layouts.learn(ObjectLayout(2, 2, 256, 32, "float32"))
        assert "raise serde_memory_gb" in caplog.text
        caplog.clear()
        case.layouts.learn(ObjectLayout(2, 2, 16, 32, "bfloat16"))
        assert "serde 'half' has no bound" in caplog.text
        caplog.clear()
        driver.close(5.0)
        case.layouts.learn(ObjectLayout(2, 2, 512, 32, "float32"))
        assert caplog.text == "", "an adapter that is closed still listens"


class TestScratch:
    def test_an_object_that_never_fits_is_rejected_and_says_what_to_raise(
        self, case: Case, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = case.through("xor", memory_bytes=64 * 2**10)
        assert driver.adapter.max_object_bytes == 32 * 2**10
        fits, beyond = payload_of(1, 28 * 2**10), payload_of(2, 28 * 2**10 + 1)
        assert driver.store(case.whole(payload=beyond)) == (REJECTED,)
        assert "raise serde_memory_gb" in caplog.text
        assert driver.store(case.whole(payload=fits)) == (DONE,)
        assert driver.load(case.empty(payload_bytes=len(fits))) == (DONE,)
        assert driver.load(case.empty(payload_bytes=len(beyond))) == (FAILED,)
        assert tally(driver).refusals() == {"too_large": 2}

    def test_many_more_objects_than_there_is_room_for_go_through(self, case: Case) -> None:
        driver = case.through("deflate", "xor", memory_bytes=160 * 2**10)
        keys = [object_key(number) for number in range(200)]
        items = [case.whole(key, payload_of(number, 10_000)) for number, key in enumerate(keys)]
        jobs = [driver.submit_store([item]) for item in items]
        assert {driver.finish(job) for job in jobs} == {(DONE,)}
        loads = [case.empty(key) for key in keys]
        jobs = [driver.submit_load(loads[at : at + 10]) for at in range(0, 200, 10)]
        jobs += [driver.submit_store([item]) for item in items]
        assert {outcome for job in jobs for outcome in driver.finish(job)} == {DONE}
        for number, (_, buffer) in enumerate(loads):
            assert bytes(buffer.view[HEADER_BYTES:]) == payload_of(number, 10_000)
        assert isinstance(driver.adapter, SerdeAdapter)
        assert driver.adapter._stores.is_idle
        assert driver.adapter._loads.is_idle

    def test_loads_go_on_while_stores_fill_their_half(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = case.through("xor", memory_bytes=64 * 2**10)
        assert driver.store(case.whole()) == (DONE,)
        store, may_go_on = MemoryAdapter.store, threading.Event()

        def stalled(adapter: MemoryAdapter, key: ObjectKey, buffer: LentBuffer) -> Outcome:
            if key == object_key(2):  # one thread of the adapter inside: the other one is left for loads
                assert may_go_on.wait(20)
            return store(adapter, key, buffer)

        monkeypatch.setattr(MemoryAdapter, "store", stalled)
        large = payload_of(2, 28 * 2**10)
        jobs = [driver.submit_store([case.whole(object_key(number), large)]) for number in (2, 3, 4)]
        try:
            assert driver.load(case.empty()) == (DONE,)
            assert driver.has(object_key(3)) == (MISSING,), "it has no room before the first store is over"
        finally:
            may_go_on.set()
        assert [driver.finish(job) for job in jobs] == [(DONE,)] * 3


class TestOneLength:
    """An adapter inside that loads objects of one length only."""

    def test_objects_are_padded_to_one_length_and_the_padding_is_no_part_of_them(self) -> None:
        case = Case(missing=Capability.ANY_LENGTH)
        try:
            driver = case.through("deflate")
            assert driver.store(case.whole(payload=bytes(10_000))) == (DONE,)
            small = case.stored
            assert len(small) == HEADER_BYTES + Deflate().stored_bytes_max(ObjectLayout(1, 1, 1, 10_000, "uint8"))
            assert driver.delete(KEY) == (DONE,)
            assert driver.store(case.whole()) == (DONE,)
            assert len(case.stored) == len(small)
            _, buffer = item = case.empty()
            assert driver.load(item) == (DONE,)
            assert bytes(buffer.view[HEADER_BYTES:]) == PAYLOAD
        finally:
            case.close()

    def test_what_it_takes_at_most_bounds_what_may_be_stored(self) -> None:
        case = Case(missing=Capability.ANY_LENGTH)
        try:
            case.max_object_bytes = HEADER_BYTES + 10_000
            driver = case.through("deflate")
            most = driver.adapter.max_object_bytes
            assert most is not None
            assert HEADER_BYTES + 9_900 < most < HEADER_BYTES + 10_000
            assert driver.store(case.whole(payload=payload_of(1, most - HEADER_BYTES))) == (DONE,)
        finally:
            case.close()


class SlowDeflate(Serde):
    """Stays in `encode` until it may go on."""

    def __init__(self) -> None:
        self.entered, self.may_go_on = threading.Event(), threading.Event()

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return layout.payload_bytes

    def encode(self, key: ObjectKey, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        self.entered.set()
        assert self.may_go_on.wait(20)
        into[:] = payload
        return len(payload)

    def decode(self, key: ObjectKey, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
        into[:] = stored


def test_a_serde_that_hangs_keeps_its_buffer_lent_beyond_the_close(case: Case) -> None:
    slow = SlowDeflate()
    driver = case.through(("slow", slow), workers=1)
    jobs = [driver.submit_store([case.whole(object_key(number))]) for number in range(3)]
    assert slow.entered.wait(10)
    driver.close(0.2)
    assert [driver.finish(job) for job in jobs] == [(FAILED,)] * 3
    assert not driver.released(jobs[0])
    assert driver.released(jobs[1])
    slow.may_go_on.set()
    driver.wait_released(jobs[0])
