"""What comes through serdes is the object that was stored, or it does not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lmcache_core.contracts.capability import Capability
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
from lmcache_devkit.borrowed_memory import object_key
from lmcache_serde.chain.links import PAD
from plugins.serde.tests.chain.heap_case import KEY, PAYLOAD, HeapCase, counters
from plugins.serde.tests.chain.serdes import Deflate, Xor

DONE, FOREIGN, DAMAGED = Outcome.DONE, Outcome.FOREIGN, Outcome.DAMAGED
FAILED, REJECTED, MISSING = Outcome.FAILED, Outcome.REJECTED, Outcome.MISSING


def test_what_is_stored_is_encoded_and_what_comes_back_is_a_plain_object(case: HeapCase) -> None:
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


def test_what_it_promises_is_what_the_adapter_inside_promises(case: HeapCase) -> None:
    case.more = Capability.ZERO_COPY | Capability.DURABLE
    expected = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE | Capability.VERIFIES
    assert case.through("deflate").adapter.capabilities == expected


def test_a_plain_object_is_foreign_where_serdes_are_configured(case: HeapCase) -> None:
    """Or plain bytes would be taken for what this server has encrypted."""
    _, buffer = case.whole()
    case.stored = bytes(buffer.view)
    driver = case.through("xor")
    assert driver.load(case.empty()) == (FOREIGN,)
    assert counters(driver).refusals() == {"other_chain": 1}


@pytest.mark.parametrize(
    "others",
    [("xor", "deflate"), ("deflate",), ("deflate", "xor", "xor"), ("deflate", "xor", "deflate")],
    ids=" then ".join,
)
def test_an_object_of_another_chain_is_foreign(case: HeapCase, others: tuple[str, ...]) -> None:
    assert case.through(*others).store(case.whole()) == (DONE,)
    driver = case.through("deflate", "xor")
    assert driver.verified_load(case.empty()) == (FOREIGN,)
    assert driver.has(KEY) == (MISSING,), "it is offered again"
    assert case.stored, "what is foreign was not left alone"


def test_the_parameters_of_the_object_are_those_that_decode_is_given(
    case: HeapCase, caplog: pytest.LogCaptureFixture
) -> None:
    assert case.through(("xor", Xor(1))).store(case.whole()) == (DONE,)
    driver = case.through(("xor", Xor(2)))
    assert driver.load(case.empty()) == (DAMAGED,)
    assert "an object cannot be decoded: another mask" in caplog.text
    assert counters(driver).rows()["xor", "decode"].failures == 1


def forged(case: HeapCase, payload: bytes = PAYLOAD, **changed: Any) -> bytes:
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
    case: HeapCase, changed: dict[str, Any], outcome: Outcome
) -> None:
    case.stored = forged(case, **changed)
    assert case.through("xor").load(case.empty()) == (outcome,)


def test_any_flipped_bit_of_what_is_stored_is_found(case: HeapCase) -> None:
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


def test_a_lossless_serde_that_gives_back_something_else_is_found_out(case: HeapCase) -> None:
    class Forgetful(Deflate):
        def decode(self, key: Any, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
            super().decode(key, layout, parameters, stored, into)
            into[len(into) // 2] ^= 1

    driver = case.through(("forgetful", Forgetful()))
    assert driver.store(case.whole()) == (DONE,)
    assert driver.load(case.empty()) == (DAMAGED,)


@pytest.mark.parametrize("where", ["encode", "decode", "stored_bytes_max", "parameters"])
def test_a_serde_that_raises_fails_its_object_alone(case: HeapCase, where: str) -> None:
    """And no thread dies of it: the next object goes through."""
    serde = Deflate()
    driver = case.through(("failing", serde), workers=1)
    if where == "decode":
        assert driver.store(case.whole()) == (DONE,)
    armed = [True]
    right = getattr(serde, where)

    def failing(*arguments: Any) -> Any:
        if armed:
            armed.clear()
            raise SystemExit("injected")
        return right(*arguments)

    setattr(serde, where, failing)
    act: Callable[[], tuple[Outcome, ...]] = (
        (lambda: driver.load(case.empty())) if where == "decode" else (lambda: driver.store(case.whole()))
    )
    assert act() == (FAILED,)
    assert act() == (DONE,)
