"""A chain undoes what it did, in the opposite order, and says whose fault it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.layout import ObjectLayout, opaque_layout
from lmcache_core.contracts.serde import Serde
from lmcache_core.model.errors import DamagedObjectError
from lmcache_core.model.object_header import SerdeMark
from lmcache_devkit.borrowed_memory import object_key
from lmcache_serde.chain.links import LINKS_MAX, PAD, SerdeChain, SerdeFailedError
from plugins.serde.tests.chain.serdes import Deflate, Xor, chain_of

KEY = object_key(1)
FLOATS = ObjectLayout(2, 2, 4, 8, "float32")


def encoded(chain: SerdeChain, layout: ObjectLayout, payload: bytes) -> tuple[bytes, tuple[SerdeMark, ...]]:
    plan = chain.plan(layout)
    into = memoryview(bytearray(plan.stored_bytes_max))
    length, marks = chain.encode(KEY, plan, memoryview(payload), into, between(chain, layout))
    return bytes(into[:length]), marks


def decoded(chain: SerdeChain, layout: ObjectLayout, stored: bytes, marks: Any) -> bytes:
    into = memoryview(bytearray(layout.payload_bytes))
    chain.decode(KEY, chain.plan(layout), marks, memoryview(stored), into, between(chain, layout))
    return bytes(into)


def between(chain: SerdeChain, layout: ObjectLayout) -> list[memoryview]:
    plan = chain.plan(layout)
    return [memoryview(bytearray(plan.between_bytes)) for _ in range(plan.areas)]


@given(
    st.lists(st.sampled_from(["xor", "deflate"]), min_size=1, max_size=LINKS_MAX), st.binary(min_size=1, max_size=3000)
)
def test_what_went_in_comes_back(names: list[str], payload: bytes) -> None:
    chain, layout = chain_of(*names), opaque_layout(len(payload))
    stored, marks = encoded(chain, layout, payload)
    assert [mark.name for mark in marks] == names
    assert marks[0].input_bytes == len(payload)
    assert decoded(chain, layout, stored, marks) == payload
    rows = chain.counters.rows()
    for name in names:
        assert rows[name, "encode"].objects == rows[name, "decode"].objects == names.count(name)
        assert rows[name, "encode"].input_bytes == rows[name, "decode"].output_bytes
        assert rows[name, "encode"].output_bytes == rows[name, "decode"].input_bytes
        assert rows[name, "encode"].seconds > 0


def test_only_the_first_gets_the_layout() -> None:
    calls: list[tuple[str, ObjectLayout]] = []

    class Listening(Xor):
        def encode(self, key: Any, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
            calls.append(("encode", layout))
            assert payload.readonly
            return super().encode(key, layout, payload, into)

        def decode(
            self, key: Any, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview
        ) -> None:
            calls.append(("decode", layout))
            assert stored.readonly
            super().decode(key, layout, parameters, stored, into)

    chain = chain_of(("one", Listening()), ("two", Listening(3)))
    payload = bytes(FLOATS.payload_bytes)
    stored, marks = encoded(chain, FLOATS, payload)
    assert decoded(chain, FLOATS, stored, marks) == payload
    opaque = opaque_layout(FLOATS.payload_bytes)
    assert calls == [("encode", FLOATS), ("encode", opaque), ("decode", opaque), ("decode", FLOATS)]


def test_one_lossy_serde_makes_a_lossy_chain() -> None:
    assert chain_of("deflate", "xor").shows_payload_digest
    chain = chain_of("half", "deflate")
    assert (chain.shows_payload_digest, chain.needs_elements, chain.lossy) == (False, True, ("half",))


class Raising(Deflate):
    def encode(self, key: Any, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        raise SystemExit("a plugin's own")

    def decode(self, key: Any, layout: ObjectLayout, parameters: bytes, stored: memoryview, into: memoryview) -> None:
        raise KeyError("a plugin's own")


class Boundless(Deflate):
    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        raise ValueError("no such layout")


class Lying(Deflate):
    def __init__(self, length: Any) -> None:
        self.length = length

    def encode(self, key: Any, layout: ObjectLayout, payload: memoryview, into: memoryview) -> int:
        return self.length  # type: ignore[no-any-return]  # that is what is wrong with it


class Growing(Deflate):
    """Asks for more where it is given less."""

    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        return 10_000 // layout.payload_bytes + 200


@pytest.mark.parametrize(
    "serde",
    [Raising(), Lying(0), Lying(-1), Lying(None), Lying(10**6), Lying("many")],
    ids=lambda each: type(each).__name__,
)
def test_what_a_serde_does_wrong_is_its_failure(serde: Serde) -> None:
    chain = chain_of("deflate", ("wrong", serde))
    with pytest.raises(SerdeFailedError, match="serde 'wrong'"):
        encoded(chain, FLOATS, bytes(FLOATS.payload_bytes))
    assert chain.counters.rows()["wrong", "encode"].failures == 1
    assert chain.counters.rows()["deflate", "encode"].failures == 0


def test_a_serde_that_has_no_bound_cannot_be_planned() -> None:
    chain = chain_of(("boundless", Boundless()))
    with pytest.raises(SerdeFailedError, match="'boundless' has no bound"):
        chain.plan(FLOATS)


def test_a_serde_that_wants_more_for_less_is_refused() -> None:
    chain = chain_of("deflate", ("growing", Growing()))
    with pytest.raises(SerdeFailedError, match="'growing'"):
        encoded(chain, opaque_layout(9_000), bytes(9_000))


def test_a_decoder_that_raises_has_failed_and_one_that_refuses_has_found_damage() -> None:
    chain = chain_of("deflate")
    stored, marks = encoded(chain, FLOATS, bytes(FLOATS.payload_bytes))
    with pytest.raises(DamagedObjectError):
        decoded(chain, FLOATS, stored[:-1], marks)
    with pytest.raises(SerdeFailedError):
        decoded(chain_of(("deflate", Raising())), FLOATS, stored, marks)
    xor = chain_of("xor")
    with pytest.raises(DamagedObjectError, match="another mask"):
        decoded(xor, FLOATS, bytes(FLOATS.payload_bytes), [SerdeMark("xor", b"\\x01", FLOATS.payload_bytes)])


@pytest.mark.parametrize("between_bytes", [0, 10**9])
def test_lengths_beyond_all_bounds_are_damage(between_bytes: int) -> None:
    chain = chain_of("deflate", "xor")
    stored, marks = encoded(chain, FLOATS, bytes(FLOATS.payload_bytes))
    with pytest.raises(DamagedObjectError):
        decoded(chain, FLOATS, stored, [marks[0], SerdeMark("xor", marks[1].parameters, between_bytes)])


@pytest.mark.parametrize("count", [0, LINKS_MAX + 1])
def test_a_chain_has_a_link_and_room_for_the_padding(count: int) -> None:
    with pytest.raises(ValueError, match=f"a chain of {count} serdes"):
        chain_of(*["xor"] * count)


@pytest.mark.parametrize("name", [PAD, "", "x" * 64])
def test_a_name_that_a_header_cannot_hold_or_means_padding_is_refused(name: str) -> None:
    """Objects of a serde called `pad` would lose their last bytes, and never be found again."""
    with pytest.raises(ValueError, match="a serde cannot be called"):
        chain_of(("deflate", Deflate()), (name, Xor()))


@pytest.mark.parametrize("parameters", [bytes(65), "text", None], ids=["long", "text", "none"])
def test_parameters_that_a_header_cannot_hold_are_the_serde_s_failure(parameters: Any) -> None:
    class Wordy(Deflate):
        def parameters(self) -> bytes:
            return parameters  # type: ignore[no-any-return]  # that is what is wrong with it

    with pytest.raises(SerdeFailedError, match="serde 'wordy' has parameters"):
        encoded(chain_of(("wordy", Wordy())), FLOATS, bytes(FLOATS.payload_bytes))
