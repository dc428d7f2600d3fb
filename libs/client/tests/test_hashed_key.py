"""Keys of engines that hash for themselves, as they are sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from blake3 import blake3

from lmcache_client import NO_TOKENS, EngineKey, HashedKey, ProtocolError
from lmcache_client.engine_key import MAX_TOKENS, read_key

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


def frame(**other: Any) -> bytes:
    """A key as other clients could send it: ours refuses most of these itself."""
    fields = msgspec.structs.asdict(EngineKey("m", 1, None, NO_TOKENS, 0, 0, "r"))
    return msgspec.msgpack.encode({**fields, "hash_algorithm": "sha256", **other})


def test_a_prompt_that_is_too_long_is_refused_before_its_hashes_are_read() -> None:
    many = [bytes(32)] * (MAX_TOKENS // 16)
    assert read_key(frame(chunk_hashes=many), 16).token_ids.count == MAX_TOKENS
    with pytest.raises(ProtocolError, match=f"of {MAX_TOKENS + 16} tokens: one of them, up to {MAX_TOKENS}"):
        read_key(frame(chunk_hashes=[*many, b""]), 16)


def test_what_refuses_an_algorithm_does_not_repeat_all_of_a_long_name() -> None:
    with pytest.raises(ProtocolError, match="name chunks of one process only") as refused:
        read_key(frame(chunk_hashes=[bytes(4)], hash_algorithm="x" * 10_000), 16)
    assert len(str(refused.value)) < 400


def test_a_key_with_tokens_cannot_have_the_name_of_one_with_hashes() -> None:
    """Its objects would be among those that hashes name, where a client may name any bytes."""
    name = read_key(msgspec.msgpack.encode(key()), 16).model_name
    with pytest.raises(ProtocolError, match=r"the model name ends with '##ext-.{16}', which the server adds"):
        read_key(frame(model_name=name, token_ids=[1, 2]), 16)
    assert read_key(frame(model_name=name[:-1], token_ids=[1, 2]), 16).model_name == name[:-1]
