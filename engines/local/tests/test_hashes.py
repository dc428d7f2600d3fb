"""Chunks that are named by hashes: the token database's, or an engine's own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.local.tests.parts import CHUNK, config, fill, kv_cache, metadata, opened, slots
from lmcache_core import HashChain
from lmcache_engine import ChunkedTokenDatabase
from lmcache_engine.token_database import read_hashes

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK)]
THERE, ELSEWHERE = range(8), range(100, 108)
OWN = [hashlib.sha256(bytes([number])).digest() for number in range(4)]
EACH = [CHUNK] * 4


def test_hashes_of_the_token_database_find_what_tokens_stored() -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(TOKENS[: 3 * CHUNK], slot_mapping=slots(THERE))
        found = list(engine.token_database.process_tokens(TOKENS, make_key=False))
        assert [(start, end) for start, end, _ in found] == [(at, at + CHUNK) for at in range(0, 4 * CHUNK, CHUNK)]
        hashes: Any = [each for _, _, each in found]
        assert engine.lookup(hashes=hashes, offsets=EACH) == 3 * CHUNK
        assert engine.lookup(hashes=hashes, offsets=EACH, request_configs={"lmcache.cache_salt": "t"}) == 0
        again: Any = ChunkedTokenDatabase(config(), metadata()).process_tokens(
            hashes=hashes, offsets=EACH, make_key=False
        )
        assert [each for _, _, each in again] == hashes


@pytest.mark.parametrize(
    "hashes", [OWN, [each[:20] for each in OWN], [each * 2 for each in OWN], [2**200 + i for i in range(4)]]
)
def test_an_engine_finds_what_it_stored_under_its_own_hashes(hashes: Any) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(hashes=hashes, offsets=EACH, slot_mapping=slots(THERE))
        assert engine.lookup(hashes=hashes, offsets=EACH) == 4 * CHUNK
        assert engine.lookup(hashes=[hashes[0], hashes[2]], offsets=EACH[:2]) == 2 * CHUNK, (
            "each hash says its whole prefix"
        )
        assert engine.lookup(hashes=[hashes[3], hashes[0]][::-1] + [hashes[1]], offsets=EACH[:3]) == 3 * CHUNK
        assert engine.lookup(TOKENS) == 0
        mask = engine.retrieve(hashes=hashes, offsets=EACH, slot_mapping=slots(ELSEWHERE))
        assert mask.sum() == 4 * CHUNK
        assert all(torch.equal(layer[100:108], layer[:8]) for layer in kv)
        *_, mask = engine.retrieve_layer(hashes=hashes, offsets=EACH, slot_mapping=slots(ELSEWHERE))
        assert mask.sum() == 4 * CHUNK


def test_hashes_of_other_types_lengths_algorithms_and_seeds_do_not_meet() -> None:
    given: list[list[bytes | int]] = [
        [b"x" * 16],
        [b"x" * 17],
        [b"x" * 16 + bytes(1)],
        [int.from_bytes(b"x" * 16)],
        [120],
        [b"x"],
    ]
    names = {read_hashes(each, [CHUNK], CHUNK).model_name("m", "sha256", "0") for each in given}
    assert len(names) == 5, "two of 17 bytes have one name, and differ in their hashes"
    assert read_hashes(given[1], [CHUNK], CHUNK).hashes != read_hashes(given[2], [CHUNK], CHUNK).hashes
    own = read_hashes(OWN, EACH, CHUNK)
    assert len({own.model_name("m", *each) for each in (("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"))}) == 4
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv) as engine:
        engine.store(hashes=OWN, offsets=EACH, slot_mapping=slots(THERE))
        cache = engine._cache.control.cache
        keys = [view.key for view in cache.views(0, cache.slot_numbers)]
        assert {key.space.chain for key in keys} == {HashChain.EXTERNAL}
        assert {key.space.model_name for key in keys} == {
            own.model_name("tiny", "builtin", os.environ.get("PYTHONHASHSEED", ""))
        }


def test_what_one_process_alone_can_mean_never_leaves_it(tmp_path: Path) -> None:
    kv = kv_cache()
    on_disk: dict[str, Any] = {"local_disk": str(tmp_path / "kv"), "max_local_disk_size": 0.1}
    call: dict[str, Any] = {"offsets": EACH, "slot_mapping": slots(THERE)}
    with opened(kv, pre_caching_hash_algorithm="sha256_cbor", **on_disk) as engine:
        engine.store(hashes=OWN, **call)
        for short in ([hash(each) for each in OWN], [each[:15] for each in OWN]):
            with pytest.raises(ValueError, match="name chunks of one process only"):
                engine.store(hashes=short, **call)
            with pytest.raises(ValueError, match="at least 16 bytes"):
                engine.lookup(hashes=short, offsets=EACH)
    with opened(kv_cache(), pre_caching_hash_algorithm="sha256_cbor", **on_disk) as engine:
        assert engine.lookup(hashes=OWN, offsets=EACH) == 4 * CHUNK, "another process, by files"
    with opened(kv_cache(), **on_disk) as engine:  # builtin
        with pytest.raises(ValueError, match="by 'builtin' name chunks of one process only"):
            engine.store(hashes=OWN, **call)
        assert engine.lookup(hashes=OWN, offsets=EACH) == 0, "they could be the token database's"


@pytest.mark.parametrize(
    ("hashes", "offsets", "said"),
    [
        (OWN, None, "4 hashes need as many offsets"),
        (OWN, EACH[:3], "4 hashes need as many offsets"),
        (OWN, [CHUNK, CHUNK, CHUNK, CHUNK - 1], f"offsets are multiples of the chunk, one for each: {CHUNK}"),
        (OWN, [CHUNK, CHUNK, CHUNK, 2 * CHUNK], "offsets are multiples of the chunk"),
        ([OWN[0], b"x" * 20], EACH[:2], "all bytes of one length, or all integers"),
        ([OWN[0], 2**250], EACH[:2], "all bytes of one length, or all integers"),
        ([b""], EACH[:1], "a hash is bytes or an integer"),
        ([2**300], EACH[:1], "at most 256 bits"),
        (["x"], EACH[:1], "a hash is bytes"),
        ([True], EACH[:1], "a hash is bytes"),
        ([OWN[0], OWN[1], OWN[0]], EACH[:3], "a hash is there twice"),
    ],
)
def test_hashes_that_cannot_be_meant_are_refused(hashes: Any, offsets: Any, said: str) -> None:
    with opened(kv_cache()) as engine, pytest.raises(ValueError, match=said):
        engine.lookup(hashes=hashes, offsets=offsets)
