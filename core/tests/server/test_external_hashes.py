"""Engines that name chunks by hashes of their own, through a whole server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from core.tests.server.conftest import StartServer
from lmcache_client import NO_TOKENS, EngineKey, HashedKey, encode_tokens
from lmcache_client.engine_key import TokenSequence
from lmcache_client.external_hashes import ExternalHashes
from lmcache_client.hash_chain import Blake3Chain, read_prompt
from lmcache_core import HashChain
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

TOKENS = list(range(160))
CHUNKS = 10


class Hashing(FakeEngine):
    """Names chunks by a chain of SHA-256 over its tokens."""

    algorithm, size = "sha256-pages", 32

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        found, last = [], b"seed"
        for at in range(0, self.whole(tokens), self.chunk_tokens):
            last = hashlib.sha256(last + repr(list(tokens[at : at + self.chunk_tokens])).encode()).digest()
            found.append(last[: self.size])
        return found

    def key(self, tokens: Sequence[int], request: str, start: int, end: int, *, of_worker: bool = True) -> EngineKey:
        plain = super().key(tokens, request, start, end, of_worker=of_worker)
        fields = msgspec.structs.asdict(plain) | {"token_ids": NO_TOKENS, "chunk_hashes": self.hashes(tokens)}
        return HashedKey(**fields, hash_algorithm=self.algorithm)


class Other(Hashing):
    algorithm = "another"


class Short(Hashing):
    """20 bytes of each hash."""

    size = 20


@pytest.mark.parametrize("kind", [Hashing, Short])
def test_what_one_engine_stores_another_one_reads(kind: type[Hashing], server: Server, endpoint: str) -> None:
    with kind(endpoint) as first, kind(endpoint) as second:
        assert first.lookup(TOKENS) == 0
        assert first.store(TOKENS)
        first.end()
        assert second.lookup(TOKENS) == CHUNKS
        assert second.lookup([*TOKENS[:50], 7, *TOKENS[51:]], "other") == 50 // 16
        assert second.retrieve(TOKENS, start=32) == [second.content(TOKENS, chunk) for chunk in range(2, CHUNKS)]
        second.end()
        second.end("other")
        counts = server.status()["l1"]
        assert (counts["held"], counts["quarantined"]) == (0, 0)


def test_tokens_and_hashes_and_two_algorithms_are_apart(endpoint: str) -> None:
    with (
        FakeEngine(endpoint) as tokens,
        Hashing(endpoint) as hashes,
        Other(endpoint) as other,
        Short(endpoint) as short,
    ):
        assert hashes.store(TOKENS)
        assert [each.lookup(TOKENS) for each in (tokens, hashes, other, short)] == [0, CHUNKS, 0, 0]
        assert tokens.store(TOKENS)
        assert tokens.retrieve(TOKENS) is not None
        assert other.retrieve(TOKENS) is None


class Named(FakeEngine):
    """Sends tokens, under the name of another engine's hashes."""

    name = "model"

    def key(self, tokens: Sequence[int], request: str, start: int, end: int, *, of_worker: bool = True) -> EngineKey:
        plain = super().key(tokens, request, start, end, of_worker=of_worker)
        return msgspec.structs.replace(plain, model_name=self.name)


class Copying(Hashing):
    """Gives the hashes that tokens would have."""

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        array = TokenSequence.of(encode_tokens(tokens))
        return Blake3Chain(self.chunk_tokens, read_prompt, False).extend((), array.encoded, 0, array.count)[0]


def test_a_client_with_tokens_cannot_reach_what_a_client_of_hashes_has_stored(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Hashes may be any bytes, also those of other tokens: what they name must not be found by tokens."""
    with Copying(endpoint) as hashes, Named(endpoint) as tokens:
        assert hashes.store(TOKENS)
        assert hashes.lookup(TOKENS) == CHUNKS
        assert tokens.lookup(TOKENS) == 0
        tokens.name = ExternalHashes.of(hashes.hashes(TOKENS)).model_name("model", hashes.algorithm, "")
        assert tokens.lookup(TOKENS, "o") == 0
        assert "which the server adds to names of keys with chunk_hashes" in caplog.text
        assert tokens.retrieve(TOKENS) is None
        assert hashes.retrieve(TOKENS) == [hashes.content(TOKENS, chunk) for chunk in range(CHUNKS)]


def test_tenants_are_apart(endpoint: str) -> None:
    with Hashing(endpoint, salt="a") as one, Hashing(endpoint, salt="b") as other:
        assert one.store(TOKENS)
        assert (one.lookup(TOKENS), other.lookup(TOKENS)) == (CHUNKS, 0)


def test_they_come_back_from_l2_under_their_own_name(start_server: StartServer) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    with Hashing(server.info.engine_endpoint) as engine:
        assert engine.store(TOKENS)
        deadline = time.monotonic() + 20
        while server.status()["store"]["backlog_bytes"] and time.monotonic() < deadline:
            time.sleep(0.01)
        (client,) = (adapter.client for adapter in server.parts.tiers.l2.adapters)
        page = client.list_keys(None, 100)
        assert page is not None
        assert {key.space.chain for key in page.keys} == {HashChain.EXTERNAL}
        assert {key.space.model_name.partition("##ext-")[0] for key in page.keys} == {"model"}
        assert {key.chunk_hash for key in page.keys} == set(engine.hashes(TOKENS))
        engine.scheduler.clear()
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve(TOKENS) == [engine.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        assert not [each for each in server.status()["conditions"] if each["name"] == "objects_do_not_fit"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"chunk_hashes": [bytes(15)]}, "hashes of 15 bytes by 'sha256' name chunks of one process only"),
        ({"hash_algorithm": "builtin"}, "by 'builtin' name chunks of one process only"),
        ({"hash_algorithm": ""}, "by '' name chunks of one process only"),
        ({"chunk_hashes": [bytes(16), bytes(32)]}, "all bytes of one length"),
        ({"chunk_hashes": [b""]}, "a hash is bytes"),
        ({"hash_seed": "x" * 256}, "at most 255 bytes"),
        ({"token_ids": msgspec.Raw(b"\x91\x01")}, "1 token_ids and chunk_hashes of 16 tokens"),
        ({"end": 17}, "end is 17"),
    ],
)
def test_hashes_of_one_process_and_what_fits_together_badly_are_refused_by_name(
    wrong: dict[str, Any], reason: str, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As other clients could send them: ours refuses most of them itself."""
    fields: dict[str, Any] = {
        "model_name": "model", "world_size": 1, "worker_id": None, "token_ids": NO_TOKENS, "start": 0, "end": 16,
        "request_id": "r", "num_kv_readers": 1, "chunk_hashes": [bytes(32)], "hash_algorithm": "sha256", **wrong,
    }  # fmt: skip

    with FakeEngine(endpoint) as engine:
        engine.scheduler.lookup(fields)  # type: ignore[arg-type]
        assert engine.scheduler.query_prefetch_status("r") == 0
    assert reason in caplog.text


def test_a_frame_with_hashes_is_never_taken_for_one_that_was_read_before(endpoint: str) -> None:
    """The server remembers how frames begin, to skip tokens that it knows."""
    with FakeEngine(endpoint) as tokens, Hashing(endpoint) as hashes:
        assert tokens.store(TOKENS)
        for _ in range(3):
            assert (tokens.lookup(TOKENS), hashes.lookup(TOKENS)) == (CHUNKS, 0)
        assert hashes.store(TOKENS)
        for _ in range(3):
            assert (tokens.lookup(TOKENS), hashes.lookup(TOKENS)) == (CHUNKS, CHUNKS)
            assert hashes.lookup([5, *TOKENS[1:]], "o") == 0
