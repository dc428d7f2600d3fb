"""The requirements of a serde, as tests.

class TestAcme(SerdeSuite):
    offer = Offer("acme", "...", open="lmcache_serde_acme.serde:open_acme")
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from lmcache_client.layout import ObjectLayout, opaque_layout
from lmcache_core.contracts.serde import PARAMETERS_MAX_BYTES, Serde
from lmcache_core.model.errors import DamagedObjectError
from lmcache_devkit.borrowed_memory import object_key
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

CANARY = 0xA5
LAYOUTS = (
    ObjectLayout(1, 1, 1, 1, "uint8"),
    ObjectLayout(1, 2, 16, 64, "float32"),
    ObjectLayout(2, 3, 16, 40, "bfloat16"),
    ObjectLayout(2, 2, 32, 128, "float16"),
    ObjectLayout(1, 5, 7, 33, "float8_e4m3fn"),
)
_LAYOUT_IDS = [f"{layout.dtype}{list(layout.shape)}" for layout in LAYOUTS]


class SerdeSuite(OfferSuite):
    """Set `offer`; override `takes` where some types of elements are not taken."""

    kind: ClassVar[str] = "serde"

    def takes(self, layout: ObjectLayout) -> bool:
        """Is this serde made for such objects?"""
        return True

    @pytest.fixture
    def serde(self, under_test: OpenableOffer) -> Serde:
        serde: Serde = under_test.open()
        return serde

    @pytest.fixture(params=LAYOUTS, ids=_LAYOUT_IDS)
    def layout(self, request: pytest.FixtureRequest) -> ObjectLayout:
        layout: ObjectLayout = request.param
        if not self.takes(layout):
            pytest.skip(f"not for {layout.dtype}")
        return layout

    def test_parameters_fit_into_the_header_and_stay_the_same(self, serde: Serde) -> None:
        assert len(serde.parameters()) <= PARAMETERS_MAX_BYTES
        assert serde.parameters() == serde.parameters()

    def test_its_bound_does_not_fall_where_the_payload_grows(self, serde: Serde) -> None:
        """Behind another serde, room is set aside for the most that it may be given; what comes is mostly less."""
        if serde.needs_elements:
            pytest.skip("the serde is always first in a chain")
        lengths = (*range(1, 300), *range(2**20 - 9, 2**20 + 9))
        bounds = [serde.stored_bytes_max(opaque_layout(length)) for length in lengths]
        assert bounds == sorted(bounds)

    @pytest.mark.parametrize("content", ["random", "constant", "tensor"])
    def test_what_went_in_comes_back(self, serde: Serde, layout: ObjectLayout, content: str) -> None:
        """To the bit where it is lossless; within the declared bound where it is not."""
        payload = _payload(layout, content)
        back = decode(serde, layout, encode(serde, layout, payload))
        if serde.lossless:
            assert back == payload
        elif content == "tensor" and (given := _numbers(layout, payload)):
            limit = serde.error_bound * max(map(abs, given))
            worst = max(abs(a - b) for a, b in zip(given, _numbers(layout, back), strict=True))
            assert worst <= limit, f"an error of {worst}, the bound declared is {limit}"

    def test_what_it_needs_to_know_of_the_elements_is_in_what_it_wrote(
        self, serde: Serde, layout: ObjectLayout
    ) -> None:
        """A layout may be known to who stores and not to who loads, and the other way round."""
        if serde.needs_elements:
            pytest.skip("the serde is only ever given layouts that are known")
        payload, unknown = _payload(layout, "tensor"), opaque_layout(layout.payload_bytes)
        stored = encode(serde, layout, payload)
        assert decode(serde, unknown, stored) == decode(serde, layout, stored)
        stored = encode(serde, unknown, payload)
        assert decode(serde, layout, stored) == decode(serde, unknown, stored)

    def test_nothing_is_written_beyond_what_was_asked_for(self, serde: Serde, layout: ObjectLayout) -> None:
        payload = bytearray(_payload(layout, "random"))
        before = bytes(payload)
        room = serde.stored_bytes_max(layout)
        into = bytearray([CANARY]) * (room + 64)
        length = _encode_into(serde, layout, memoryview(payload), memoryview(into)[:room])
        assert 0 < length <= room
        assert bytes(payload) == before, "encoding changed the payload, which is L1's memory"
        assert into[room:] == bytes([CANARY]) * 64
        back = bytearray([CANARY]) * (len(payload) + 64)
        stored = memoryview(into)[:length].toreadonly()
        serde.decode(object_key(1), layout, serde.parameters(), stored, memoryview(back)[: len(payload)])
        assert back[len(payload) :] == bytes([CANARY]) * 64

    def test_another_instance_reads_what_one_wrote(
        self, serde: Serde, layout: ObjectLayout, under_test: OpenableOffer
    ) -> None:
        """Objects outlive servers."""
        payload = _payload(layout, "random")
        stored = encode(serde, layout, payload)
        expected = decode(serde, layout, stored)
        assert decode(under_test.open(), layout, stored, serde.parameters()) == expected

    def test_bytes_that_were_never_written_are_rejected_or_harmless(self, serde: Serde, layout: ObjectLayout) -> None:
        """They cannot come here while digests hold; if they do, DamagedObjectError is raised, or every byte that was asked for
        is written: the memory had another object in it before."""
        stored = encode(serde, layout, _payload(layout, "random"))
        chance = random.Random(7)
        broken = [
            b"",
            stored[:1],
            stored[: len(stored) // 2],
            stored[:-1],
            stored + b"\0",
            chance.randbytes(len(stored)),
        ]
        for _ in range(50):
            changed = bytearray(stored)
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            broken.append(bytes(changed))
        for each in broken:
            try:
                first, second = (decode(serde, layout, each, before=canary) for canary in (CANARY, CANARY ^ 0xFF))
            except DamagedObjectError:
                continue
            except Exception as error:
                raise AssertionError(
                    f"decode of {len(each)} bytes that encode did not write raised {type(error).__name__}: {error}; "
                    "DamagedObjectError is what says that an object is not usable"
                ) from error
            kept = [at for at in range(layout.payload_bytes) if first[at] != second[at]]
            assert not kept, (
                f"decode of {len(each)} bytes that encode did not write left {len(kept)} of {layout.payload_bytes} bytes as "
                "they were in the memory that it was given; raise DamagedObjectError where not all of them can be written"
            )

    def test_several_threads_may_use_it(self, serde: Serde, layout: ObjectLayout) -> None:
        payloads = [_payload(layout, "random", seed) for seed in range(8)]
        expected = [decode(serde, layout, encode(serde, layout, payload)) for payload in payloads]
        seen: list[tuple[int, bytes]] = []

        def work(number: int) -> None:
            for _ in range(5):
                back = decode(serde, layout, encode(serde, layout, payloads[number]))
                seen.append((number, back))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(payloads))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 5 * len(payloads)
        assert all(back == expected[number] for number, back in seen)


def encode(serde: Serde, layout: ObjectLayout, payload: bytes) -> bytes:
    into = memoryview(bytearray(serde.stored_bytes_max(layout)))
    return bytes(into[: _encode_into(serde, layout, memoryview(payload), into)])


def _encode_into(serde: Serde, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
    try:
        return serde.encode(object_key(1), layout, payload, into)
    except (ValueError, IndexError, BufferError) as error:  # as slices of a memoryview that is too short raise
        raise AssertionError(
            f"encode failed with {len(into)} bytes to write into, which is stored_bytes_max for {len(payload)} bytes of "
            f"{layout.dtype}: {type(error).__name__}: {error}; does it need more?"
        ) from error


def decode(
    serde: Serde, layout: ObjectLayout, stored: bytes, parameters: bytes | None = None, before: int = CANARY
) -> bytes:
    into = bytearray([before]) * layout.payload_bytes
    given = serde.parameters() if parameters is None else parameters
    serde.decode(object_key(1), layout, given, memoryview(stored), memoryview(into))
    return bytes(into)


def _payload(layout: ObjectLayout, content: str, seed: int = 1) -> bytes:
    chance = random.Random(seed)
    if content == "constant":
        return bytes(layout.payload_bytes)
    if content == "random" or layout.dtype not in ("float32", "float16", "bfloat16"):
        return chance.randbytes(layout.payload_bytes)
    values = [chance.gauss(0, 1) for _ in range(layout.payload_bytes // (4 if layout.dtype == "float32" else 2))]
    if layout.dtype == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{'f' if layout.dtype == 'float32' else 'e'}", *values)


def _numbers(layout: ObjectLayout, payload: bytes) -> Sequence[float]:
    """The elements, for the types that can be read without a tensor library; none for the others."""
    formats: dict[str, Any] = {"float32": ("f", 4), "float16": ("e", 2)}
    if layout.dtype == "bfloat16":
        pairs = (payload[at : at + 2] for at in range(0, len(payload), 2))
        return [struct.unpack("<f", b"\0\0" + pair)[0] for pair in pairs]
    if layout.dtype not in formats:
        return ()
    code, size = formats[layout.dtype]
    return struct.unpack(f"<{len(payload) // size}{code}", payload)
