"""The bytes that every server is sent: equal tokens in different bytes, and what a client of ours would send."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.frames import LookupCycle, StorePair, key, request
from benchmarks.prompts import CHUNK_TOKENS, SPELLINGS, Prompt
from lmcache_client import operations as ops
from lmcache_client.codec import OperationTable
from lmcache_client.engine_key import EngineKey

PROMPT = Prompt(3, seed=1)
TOKENS: list[int] = msgspec.msgpack.decode(PROMPT.token_ids())


def test_the_usual_spelling_is_what_an_engine_writes() -> None:
    header = b"\xdc" + len(TOKENS).to_bytes(2, "big")
    assert bytes(PROMPT.token_ids())[5:] == msgspec.msgpack.encode(TOKENS).removeprefix(header)
    assert len(TOKENS) == 3 * CHUNK_TOKENS


@given(st.integers(0, SPELLINGS - 1), st.integers(0, SPELLINGS - 1), st.integers(1, 3))
def test_spellings_differ_in_bytes_and_not_in_tokens(one: int, other: int, chunks: int) -> None:
    first, second = (bytes(PROMPT.token_ids(spelling, chunks)) for spelling in (one, other))
    assert msgspec.msgpack.decode(first) == msgspec.msgpack.decode(second) == TOKENS[: chunks * CHUNK_TOKENS]
    assert (first == second) == (one == other)


def test_prompts_of_other_seeds_share_no_chunk() -> None:
    assert msgspec.msgpack.decode(Prompt(3, seed=2).token_ids())[:CHUNK_TOKENS] != TOKENS[:CHUNK_TOKENS]


@given(st.integers(0, 2**31 - 1))
def test_another_prompt_differs_in_its_first_token_and_is_written_as_engines_do(number: int) -> None:
    other = bytes(PROMPT.another(number))
    tokens = msgspec.msgpack.decode(other)
    assert tokens[0] not in TOKENS
    assert tokens[1:] == TOKENS[1:]
    assert msgspec.msgpack.encode(tokens)[3:] == other[5:]


def test_a_shorter_prompt_is_the_start_of_a_longer_one() -> None:
    longer, shorter = bytes(PROMPT.token_ids(7)), bytes(PROMPT.token_ids(7, 2))
    assert longer[5:].startswith(shorter[5:])


@pytest.mark.parametrize("worker_id", [None, 0])
def test_a_key_reads_as_the_protocol_says(worker_id: int | None) -> None:
    frame = msgspec.msgpack.encode(key(PROMPT.token_ids(), 3, "r", worker_id))
    assert list(msgspec.msgpack.decode(frame)) == list(EngineKey.__struct_fields__)


def test_every_request_of_a_cycle_and_of_a_store_is_taken_by_the_server() -> None:
    table = OperationTable(ops.OPERATIONS)
    cycle, pair = LookupCycle(PROMPT.token_ids(), 3, "r"), StorePair(PROMPT.token_ids(), 3, "r")
    frames = [cycle.lookup, cycle.wait, cycle.free, cycle.end, pair.prepare, pair.commit, request(ops.NOOP)]
    read = [(table.find(one[1]), table.find(one[1]).decode_payload(one[2:])) for one in frames]
    names = [codec.operation.name for codec, _ in read]
    assert names == [
        "lookup",
        "wait_prefetch_status",
        "free_lookup_locks",
        "end_session",
        "prepare_store",
        "commit_store",
        "noop",
    ]
    for _, payload in (read[0], read[2], read[4], read[5]):
        assert (payload[0].start, payload[0].end, payload[0].request_id) == (0, 3 * CHUNK_TOKENS, "r")
