"""No altered byte of a stored object passes for the object."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import (
    HEADER_BYTES,
    Check,
    HashChain,
    KeySpace,
    ObjectHeader,
    ObjectKey,
    Outcome,
    SerdeMark,
    check,
    inspect,
    seal,
    seal_encoded,
)
from lmcache_core.model.object_header import (
    DIGEST_BYTES,
    FORMAT_VERSION,
    MAGIC,
    SERDE_NAME_MAX_BYTES,
    SERDE_PARAMETERS_MAX_BYTES,
    SERDES_MAX,
    digest,
)

SPACE = KeySpace("model", 7, 1, "tenant", 256, HashChain.BLAKE3, b"0123456789abcdef")
KEY = ObjectKey(SPACE, bytes(range(32)))
PAYLOAD = bytes(range(256)) * 5 + b"odd"


def sealed(key: ObjectKey = KEY, payload: bytes = PAYLOAD) -> bytearray:
    run = bytearray(b"\xff" * HEADER_BYTES + payload)
    seal(memoryview(run), key, created_ns=123)
    return run


def resealed(run: bytearray) -> bytearray:
    """The page's own digest made right again, as another writer would."""
    run[HEADER_BYTES - DIGEST_BYTES : HEADER_BYTES] = bytes(DIGEST_BYTES)
    run[HEADER_BYTES - DIGEST_BYTES : HEADER_BYTES] = digest(bytes(run[:HEADER_BYTES]))
    return run


@given(st.binary(max_size=3000), st.text(max_size=300), st.text(max_size=300))
def test_what_was_sealed_is_intact_and_says_what_it_is(payload: bytes, model: str, salt: str) -> None:
    key = ObjectKey(KeySpace(model, 1, 2, salt, 3, HashChain.SHA256_CBOR, bytes(16)), bytes(32))
    run = sealed(key, payload)
    assert check(memoryview(run), key).outcome is Outcome.DONE
    assert inspect(memoryview(run)[:HEADER_BYTES]) == ObjectHeader(
        key, 123, len(payload), len(payload), digest(payload), digest(payload)
    )
    assert run[HEADER_BYTES:] == payload


def test_the_page_is_laid_out_as_documented() -> None:
    page = bytes(sealed()[:HEADER_BYTES])
    canonical = KEY.canonical
    body = (
        MAGIC + struct.pack("<HHBBB", 1, 0, 1, 1, 0) + struct.pack("<QQQ", 123, len(PAYLOAD), len(PAYLOAD))
        + digest(PAYLOAD) * 2 + struct.pack("<H", len(canonical)) + canonical
    )  # fmt: skip
    assert page[:-16] == body + bytes(HEADER_BYTES - 16 - len(body))
    assert page[-16:] == digest(body + bytes(HEADER_BYTES - len(body)))


def test_no_flipped_bit_of_any_byte_passes() -> None:
    run = sealed()
    view = memoryview(run)
    for at in range(len(run)):
        run[at] ^= 1 << at % 8
        assert check(view, KEY).outcome in (Outcome.DAMAGED, Outcome.FOREIGN), at
        run[at] ^= 1 << at % 8
    assert check(view, KEY).outcome is Outcome.DONE


@given(st.integers(0, HEADER_BYTES + len(PAYLOAD) - 1), st.integers(1, 255))
def test_no_changed_byte_passes(at: int, change: int) -> None:
    run = sealed()
    run[at] ^= change
    assert check(memoryview(run), KEY).outcome in (Outcome.DAMAGED, Outcome.FOREIGN)


@given(st.integers(0, HEADER_BYTES + len(PAYLOAD) - 1))
def test_no_shorter_or_longer_run_passes(length: int) -> None:
    run = memoryview(sealed())
    assert check(run[:length], KEY).outcome in (Outcome.DAMAGED, Outcome.FOREIGN)
    assert check(bytes(run) + bytes(length + 1), KEY).outcome is Outcome.DAMAGED


def test_an_object_under_another_name_is_foreign() -> None:
    other = ObjectKey(SPACE, bytes(32))
    assert check(memoryview(sealed(other)), KEY).outcome is Outcome.FOREIGN


@pytest.mark.parametrize(
    ("at", "value", "names"),
    [(0, b"NOTMAGIC", "magic"), (8, struct.pack("<H", FORMAT_VERSION + 1), "version"), (10, b"\x01\0", "flags"),
     (12, b"\x02", "digest"), (14, b"\x01", "serdes")],
)  # fmt: skip
def test_what_another_writer_made_is_foreign_and_not_damaged(at: int, value: bytes, names: str) -> None:
    run = sealed()
    run[at : at + len(value)] = value
    found = inspect(bytes(resealed(run)[:HEADER_BYTES]))
    assert isinstance(found, Check)
    assert found.outcome is Outcome.FOREIGN
    assert names in found.reason


def test_a_later_version_is_foreign_wherever_it_keeps_its_digest() -> None:
    run = sealed()
    run[8:10] = struct.pack("<H", FORMAT_VERSION + 1)
    assert check(memoryview(run), KEY).outcome is Outcome.FOREIGN


@pytest.mark.parametrize(
    ("at", "value"), [(13, b"\x09"), (13, b"\x02"), (71, b"\xff\xff"), (71, b"\x01\0"), (73 + 32, b"\xff\xff")]
)
def test_a_page_that_contradicts_itself_is_not_a_header(at: int, value: bytes) -> None:
    run = sealed()
    run[at : at + len(value)] = value
    assert isinstance(inspect(bytes(resealed(run)[:HEADER_BYTES])), Check)
    assert check(memoryview(run), KEY).outcome is not Outcome.DONE


@given(st.binary(max_size=64), st.integers(0, HEADER_BYTES))
def test_any_bytes_are_answered_and_none_raise(data: bytes, at: int) -> None:
    run = sealed()
    run[at : at + len(data)] = data
    for page in (data, bytes(run[:HEADER_BYTES]), bytes(resealed(run)[:HEADER_BYTES])):
        assert isinstance(inspect(page), (Check, ObjectHeader))
        assert check(page, KEY).outcome is not Outcome.DONE


# --- through serdes

MARKS = (SerdeMark("zstd", b"\x03", len(PAYLOAD)), SerdeMark("aesgcm", b"key-1", 40))
STORED = bytes(range(56))


def encoded(marks: tuple[SerdeMark, ...] = MARKS, stored: bytes = STORED) -> bytearray:
    run = bytearray(b"\xff" * HEADER_BYTES + stored)
    seal_encoded(
        memoryview(run),
        KEY,
        123,
        payload_bytes=len(PAYLOAD),
        payload_digest=digest(PAYLOAD),
        serdes=marks,
    )
    return run


@given(
    st.lists(
        st.builds(
            SerdeMark,
            st.text(st.characters(max_codepoint=127), min_size=1, max_size=SERDE_NAME_MAX_BYTES),
            st.binary(max_size=SERDE_PARAMETERS_MAX_BYTES),
            st.integers(0, 2**64 - 1),
        ),
        min_size=1,
        max_size=SERDES_MAX,
    ),
    st.binary(max_size=200),
)
def test_a_page_says_which_serdes_an_object_went_through(marks: list[SerdeMark], stored: bytes) -> None:
    found = inspect(memoryview(encoded(tuple(marks), stored))[:HEADER_BYTES])
    assert found == ObjectHeader(
        KEY, 123, len(PAYLOAD), len(stored), digest(stored), digest(PAYLOAD), serdes=tuple(marks)
    )


def test_an_encoded_object_is_whole_in_a_buffer_that_is_longer() -> None:
    run = encoded()
    assert check(memoryview(run), KEY, at_most=True).outcome is Outcome.DONE
    assert check(memoryview(run + b"left over"), KEY, at_most=True).outcome is Outcome.DONE
    assert check(memoryview(run + b"left over"), KEY, digest(STORED), at_most=True).outcome is Outcome.DONE
    assert check(memoryview(run)[:-1], KEY, at_most=True).outcome is Outcome.DAMAGED


def test_an_encoded_object_is_foreign_to_who_expects_none() -> None:
    """Another server's, with other settings: left alone, and never taken for a payload."""
    assert check(memoryview(encoded()), KEY).outcome is Outcome.FOREIGN


def test_a_plain_object_is_whole_in_a_buffer_that_is_longer_only_when_that_is_asked_for() -> None:
    longer = sealed() + b"left over"
    assert check(memoryview(longer), KEY, at_most=True).outcome is Outcome.DONE
    assert check(memoryview(longer), KEY).outcome is Outcome.DAMAGED


@given(st.data())
def test_no_altered_bit_of_an_encoded_object_passes(data: st.DataObject) -> None:
    run = encoded()
    run[data.draw(st.integers(0, len(run) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert check(memoryview(run + bytes(50)), KEY, at_most=True).outcome is not Outcome.DONE


@given(st.data())
def test_a_page_that_another_wrote_is_read_or_refused(data: st.DataObject) -> None:
    run = encoded()
    at = data.draw(st.integers(8, 400))
    run[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    assert check(memoryview(resealed(run)), KEY, at_most=True).outcome in Outcome


@pytest.mark.parametrize(
    "mark",
    [SerdeMark("", b"", 0), SerdeMark("n" * 64, b"", 0), SerdeMark("zstd", bytes(65), 0)],
)
def test_a_mark_that_does_not_fit_is_refused(mark: SerdeMark) -> None:
    with pytest.raises(ValueError):
        encoded((mark,))


@pytest.mark.parametrize("count", [0, SERDES_MAX + 1])
def test_a_chain_of_no_or_too_many_serdes_is_refused(count: int) -> None:
    with pytest.raises(ValueError):
        encoded(MARKS[:1] * count)
