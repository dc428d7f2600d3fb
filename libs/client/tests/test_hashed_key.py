"""Keys of engines that hash for themselves, as they are sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from blake3 import blake3

from lmcache_client import NO_TOKENS, EngineKey, HashedKey, ProtocolError
from lmcache_client.engine_key import read_key

HASHES = [bytes([number]) * 32 for number in range(3)]


def key(**other: Any) -> HashedKey:
    fields: dict[str, Any] = {"chunk_hashes": HASHES, "hash_algorithm": "sha256", **other}
    return HashedKey("m", 1, None, NO_TOKENS, 0, 48, "r", "tenant", **fields)


def test_a_server_reads_an_ordinary_key_whose_model_names_the_algorithm() -> None:
    read = read_key(msgspec.msgpack.encode(key()), 16)
    assert type(read) is EngineKey
    assert (read.world_size, read.start, read.end, read.request_id, read.cache_salt) == (1, 0, 48, "r", "tenant")
    assert read.model_name.startswith("m##ext-")
    assert not isinstance(read.token_ids, msgspec.Raw)
    assert (read.token_ids.count, read.token_ids.known) == (48, (HASHES, 0, 0))
    with pytest.raises(ProtocolError):
        read.token_ids.decode()


def test_the_name_is_that_of_algorithm_seed_and_size() -> None:
    """As docs/internals/object-format.md has it, "Object key"."""
    names = {
        read_key(msgspec.msgpack.encode(each)).model_name
        for each in (
            key(),
            key(hash_algorithm="sha512"),
            key(hash_seed="1"),
            key(chunk_hashes=[each[:20] for each in HASHES]),
        )
    }
    assert len(names) == 4
    facts = b"\x06sha256\x00\x01\x00\x20"
    assert f"m##ext-{blake3(facts).hexdigest(8)}" in names


def test_a_key_with_tokens_is_sent_as_ever() -> None:
    frame = msgspec.msgpack.encode(EngineKey("m", 1, None, NO_TOKENS, 0, 0, "r"))
    assert (frame[0], b"hash" in frame) == (0x8A, False)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"chunk_hashes": [bytes(15)]}, "name chunks of one process only"),
        ({"chunk_hashes": [1 << 60]}, "name chunks of one process only"),
        ({"hash_algorithm": "builtin"}, "name chunks of one process only"),
        ({"hash_algorithm": ""}, "name chunks of one process only"),
        ({"chunk_hashes": [bytes(16), bytes(17)]}, "one length"),
        ({"chunk_hashes": ["a" * 32]}, "a hash is bytes"),
        ({"hash_algorithm": "x" * 256}, "at most 255 bytes"),
    ],
)
def test_what_a_server_would_refuse_is_not_sent(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        key(**wrong)


def test_keys_of_other_hashes_are_not_equal() -> None:
    one, same, other = (
        read_key(msgspec.msgpack.encode(key(chunk_hashes=[bytes([each]) * 32] * 3)), 16) for each in (1, 1, 2)
    )
    assert one == same
    assert hash(one.token_ids) == hash(same.token_ids)
    assert one != other
