"""The canonical form of keys, and names on media."""

from __future__ import annotations

import re

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.errors import ConfigError, ProtocolError
from lmcache_core import HashChain, KeySpace, ObjectKey, media_path
from lmcache_core.model.keys import CANONICAL_MAX_BYTES, pack_kv_rank, parse_canonical

names = st.text(max_size=200)
spaces = st.builds(
    KeySpace,
    model_name=names,
    kv_rank=st.integers(0, 2**32 - 1),
    object_group=st.integers(0, 2**16 - 1),
    cache_salt=names,
    chunk_tokens=st.integers(0, 2**32 - 1),
    chain=st.sampled_from(HashChain),
    layout=st.binary(min_size=16, max_size=16),
)
keys = st.builds(ObjectKey, spaces, st.binary(min_size=32, max_size=32))

SPACE = KeySpace("m/x", 0x01020304, 5, "salt", 256, HashChain.SHA256_CBOR, bytes(range(16)))
KEY = ObjectKey(SPACE, b"\xaa" * 32)


def test_the_canonical_form_is_this_byte_for_byte() -> None:
    assert KEY.canonical == (
        b"\xaa" * 32 + b"\x03\x00m/x" + b"\x04\x03\x02\x01" + b"\x05\x00" + b"\x04\x00salt"
        b"\x00\x01\x00\x00" + b"\x02" + bytes(range(16))
    )  # fmt: skip
    assert KEY.object_id == blake3(KEY.canonical).digest()[:16]


@given(keys)
def test_a_key_comes_back_from_its_canonical_form(key: ObjectKey) -> None:
    assert parse_canonical(key.canonical) == key


@given(keys, keys)
def test_two_keys_share_a_canonical_form_only_when_they_are_the_same(one: ObjectKey, other: ObjectKey) -> None:
    assert (one.canonical == other.canonical) == (one == other)
    assert (one.object_id == other.object_id) == (one == other)


@pytest.mark.parametrize(
    ("field", "value"),
    [("model_name", "m/y"), ("kv_rank", 1), ("object_group", 6), ("cache_salt", ""), ("chunk_tokens", 255),
     ("chain", HashChain.BLAKE3), ("layout", bytes(16))],
)  # fmt: skip
def test_every_field_is_identity(field: str, value: object) -> None:
    fields = ("model_name", "kv_rank", "object_group", "cache_salt", "chunk_tokens", "chain", "layout")
    space = KeySpace(**{**{name: getattr(SPACE, name) for name in fields}, field: value})
    assert ObjectKey(space, KEY.chunk_hash).object_id != KEY.object_id
    assert ObjectKey(space, KEY.chunk_hash) != KEY


@given(keys, st.data())
def test_nothing_but_a_whole_key_is_read_as_one(key: ObjectKey, data: st.DataObject) -> None:
    canonical = key.canonical
    cut = data.draw(st.integers(0, len(canonical) - 1))
    for wrong in (canonical[:cut], canonical + b"\0"):
        with pytest.raises(ProtocolError, match="not a canonical object key"):
            parse_canonical(wrong)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_key_that_has_them_as_its_form_or_are_refused(data: bytes) -> None:
    try:
        key = parse_canonical(data)
    except ProtocolError:
        return
    assert key.canonical == data


def test_a_key_that_no_header_could_hold_is_refused() -> None:
    fits = CANONICAL_MAX_BYTES - len(KEY.canonical) + len("m/x")
    KeySpace("m" * fits, 0x01020304, 5, "salt", 256, HashChain.BLAKE3, bytes(16))
    with pytest.raises(ValueError, match="use a shorter model name or salt"):
        KeySpace("m" * (fits + 1), 0x01020304, 5, "salt", 256, HashChain.BLAKE3, bytes(16))


def test_a_chain_has_one_name_and_an_unknown_one_is_answered_with_those_there_are() -> None:
    assert HashChain.named("sha256_cbor") is HashChain.SHA256_CBOR
    with pytest.raises(ConfigError, match="use one of: blake3, sha256_cbor"):
        HashChain.named("md5")


@pytest.mark.parametrize(("world_size", "worker_id"), [(0, 0), (256, 0), (2, 2), (2, -1)])
def test_a_shard_that_does_not_fit_is_refused(world_size: int, worker_id: int) -> None:
    with pytest.raises(ProtocolError, match="the world size must be"):
        pack_kv_rank(world_size, worker_id)


def test_shards_are_packed_as_four_bytes() -> None:
    assert pack_kv_rank(2, 1) == 0x02010201


@given(keys)
def test_a_path_has_four_parts_of_safe_characters_and_ends_in_the_object_id(key: ObjectKey) -> None:
    model, salt, fan_out, file = media_path(key).split("/")
    for slug in (model, salt):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,47}-[0-9a-f]{8}", slug)
    assert file == key.object_id.hex() + ".kv"
    assert fan_out == file[:2]


def test_names_that_look_alike_have_folders_of_their_own() -> None:
    paths = {media_path(ObjectKey(KeySpace(name, 1, 0, "", 1, HashChain.BLAKE3, bytes(16)), bytes(32))).split("/")[0]
             for name in ("a/b", "a-b", "a\\b", "../a-b", "A/b")}  # fmt: skip
    assert len(paths) == 5
