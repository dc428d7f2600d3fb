"""`aesgcm`: only the right key opens an object, only in its own place, and only unaltered."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

import lmcache_serde.aesgcm as module
from lmcache_core import DamagedObjectError, ObjectKey, ObjectLayout, opaque_layout
from lmcache_devkit import object_key
from lmcache_serde.aesgcm import NONCE_BYTES, TAG_BYTES, AesGcmSerde, AesGcmSettings, open_aesgcm
from lmcache_serde.master_key import MasterKey
from plugins.serde.tests.round_trip import MASTER, OTHER_MASTER, decode, encode, tenant_key

FEW = settings(max_examples=40, deadline=None)

LAYOUT = ObjectLayout(2, 2, 16, 24, "bfloat16")
PAYLOAD = np.random.default_rng(1).bytes(LAYOUT.payload_bytes)


def opened(*masters: str) -> AesGcmSerde:
    return open_aesgcm(AesGcmSettings.model_validate({"keys": [{"value": master} for master in masters]}))


@FEW
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_flipped_bit_is_found(place: int, bit: int) -> None:
    serde = opened(MASTER)
    changed = bytearray(encode(serde, LAYOUT, PAYLOAD))
    changed[place % len(changed)] ^= 1 << bit
    with pytest.raises(DamagedObjectError, match="does not fit"):
        decode(serde, LAYOUT, bytes(changed))


@FEW
@given(st.binary(max_size=200), st.integers(1, 160))
def test_bytes_that_were_not_encrypted_are_rejected(stored: bytes, length: int) -> None:
    with pytest.raises(DamagedObjectError):
        decode(opened(MASTER), opaque_layout(length), stored)


def test_nothing_of_an_object_that_was_altered_is_left_in_memory() -> None:
    serde = opened(MASTER)
    changed = bytearray(encode(serde, LAYOUT, PAYLOAD))
    changed[-1] ^= 1
    into = bytearray(b"\xa5" * len(PAYLOAD))
    with pytest.raises(DamagedObjectError):
        serde.decode(object_key(1), LAYOUT, serde.parameters(), memoryview(changed), memoryview(into))
    assert into == bytes(len(PAYLOAD))


@pytest.mark.parametrize(
    "other",
    [
        object_key(2),
        tenant_key("another tenant"),
        tenant_key(""),
        ObjectKey(dataclasses.replace(object_key(1).space, model_name="acme/other"), object_key(1).chunk_hash),
        ObjectKey(dataclasses.replace(object_key(1).space, layout=bytes(16)), object_key(1).chunk_hash),
        ObjectKey(dataclasses.replace(object_key(1).space, kv_rank=7), object_key(1).chunk_hash),
    ],
)
def test_what_was_stored_for_one_object_is_rejected_for_another(other: ObjectKey) -> None:
    """An attacker who moves a valid object under another name, and makes a header for it, gains nothing."""
    serde = opened(MASTER)
    with pytest.raises(DamagedObjectError, match="does not fit"):
        decode(serde, LAYOUT, encode(serde, LAYOUT, PAYLOAD), key=other)


def test_another_length_is_rejected() -> None:
    serde = opened(MASTER)
    stored = encode(serde, opaque_layout(100), bytes(100))
    for length in (99, 101):
        with pytest.raises(DamagedObjectError):
            decode(serde, opaque_layout(length), stored)


def test_equal_content_is_different_for_every_tenant_and_every_time() -> None:
    serde = opened(MASTER)
    seen = {encode(serde, LAYOUT, PAYLOAD, tenant_key(salt)) for salt in ("a", "b", "", "a")}
    assert len(seen) == 4
    bodies = [stored[NONCE_BYTES:-TAG_BYTES] for stored in seen]
    assert all(len(set(map(bytes, zip(*pair, strict=True)))) > 200 for pair in [(bodies[0], bodies[1])])


def test_tenants_have_keys_of_their_own_even_under_one_nonce() -> None:
    master = MasterKey.of(bytes.fromhex(MASTER))
    nonce = bytes(NONCE_BYTES)
    secrets = [master.object_secret(salt, nonce) for salt in ("", "a", "b", "a\0", "ab")]
    assert len({secret.key for secret in secrets}) == len({secret.nonce for secret in secrets}) == 5
    assert master.object_secret("a", nonce) == master.object_secret("a", nonce)
    assert master.object_secret("a", nonce) != master.object_secret("a", b"\1" + nonce[1:])


def test_the_construction_is_standard_gcm_over_what_the_page_says() -> None:
    """Open an object with the key and the documented format alone (docs/operate/compression-and-encryption.md)."""
    serde, key = opened(MASTER), tenant_key("acme")
    stored = encode(serde, LAYOUT, PAYLOAD, key)
    secret = MasterKey.of(bytes.fromhex(MASTER)).object_secret("acme", stored[:NONCE_BYTES])
    parameters = serde.parameters()
    associated = (
        b"lmcache-serde aesgcm"
        + len(PAYLOAD).to_bytes(8, "little")
        + bytes([len(parameters)])
        + parameters
        + key.canonical
    )
    assert AESGCM(secret.key).decrypt(secret.nonce, stored[NONCE_BYTES:], associated) == PAYLOAD


def test_keys_are_rotated_by_putting_a_new_one_in_front() -> None:
    old, both, new = opened(MASTER), opened(OTHER_MASTER, MASTER), opened(OTHER_MASTER)
    before = encode(old, LAYOUT, PAYLOAD)
    after = encode(both, LAYOUT, PAYLOAD)
    assert decode(both, LAYOUT, before, parameters=old.parameters()) == PAYLOAD
    assert decode(both, LAYOUT, after) == decode(new, LAYOUT, after, parameters=both.parameters()) == PAYLOAD
    with pytest.raises(DamagedObjectError, match=old.parameters()[1:].hex()):
        decode(new, LAYOUT, before, parameters=old.parameters())
    with pytest.raises(DamagedObjectError, match="does not fit"):  # a header that names another key
        decode(both, LAYOUT, before, parameters=new.parameters())


@FEW
@given(st.binary(max_size=64).filter(lambda given: given != opened(MASTER).parameters()))
def test_forged_parameters_are_rejected(parameters: bytes) -> None:
    serde = opened(MASTER)
    with pytest.raises(DamagedObjectError):
        decode(serde, LAYOUT, encode(serde, LAYOUT, PAYLOAD), parameters=parameters)


def test_headers_and_messages_show_nothing_of_a_key() -> None:
    serde = opened(MASTER)
    settings = AesGcmSettings.model_validate({"keys": [{"value": MASTER}]})
    with pytest.raises(DamagedObjectError) as raised:
        decode(opened(OTHER_MASTER), LAYOUT, encode(serde, LAYOUT, PAYLOAD), parameters=serde.parameters())
    key = MasterKey.of(bytes.fromhex(MASTER))
    for shown in (str(raised.value), repr(settings), settings.model_dump_json(), repr(key), serde.parameters().hex()):
        assert MASTER[:12] not in shown
        assert MASTER[-12:] not in shown
    assert str(key._root) not in repr(key)


def test_pieces_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes less than 2 GiB in a call; objects that are larger go through it in pieces."""
    whole = opened(MASTER)
    stored = encode(whole, LAYOUT, PAYLOAD)
    monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
    assert decode(whole, LAYOUT, stored) == PAYLOAD
    assert decode(whole, LAYOUT, encode(whole, LAYOUT, PAYLOAD)) == PAYLOAD


def test_a_message_beyond_the_limit_of_gcm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MESSAGE_MAX_BYTES == 68_719_476_704
    monkeypatch.setattr(module, "MESSAGE_MAX_BYTES", len(PAYLOAD) - 1)
    with pytest.raises(ValueError, match="at most"):
        encode(opened(MASTER), LAYOUT, PAYLOAD)


def test_a_large_object_comes_back() -> None:
    layout = ObjectLayout(2, 32, 256, 1024, "bfloat16")
    payload = np.random.default_rng(2).bytes(layout.payload_bytes)
    assert len(payload) == 32 * 2**20
    serde = opened(MASTER)
    stored = encode(serde, layout, payload)
    assert len(stored) == len(payload) + NONCE_BYTES + TAG_BYTES
    assert payload[:64] not in stored
    assert decode(serde, layout, stored) == payload
