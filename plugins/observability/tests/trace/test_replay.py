"""What a replay asks for, and what it says when a server is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import ChunksStored, ConfigError, LookupHashes
from lmcache_observability.trace.replay import Replay
from lmcache_observability.trace.replay_engine import Prompt, chunk_tokens
from lmcache_observability.trace.replay_plan import plan_replay
from plugins.observability.tests.trace.stand_ins import chain, read, record, request


class EngineStandIn:
    """A server that keeps everything, or nothing, and may hand out wrong bytes."""

    def __init__(self, *, keeps: bool = True, wrong: int = 0) -> None:
        self.keeps, self.wrong = keeps, wrong
        self.kept: set[bytes] = set()
        self.calls: list[tuple[str, str, int, int]] = []

    def look_up(self, prompt: Prompt) -> int:
        hits = next((i for i, each in enumerate(prompt.hashes) if each not in self.kept), len(prompt.hashes))
        self.calls.append(("look_up", prompt.request, 0, hits))
        return hits

    def retrieve(self, prompt: Prompt, chunks: int) -> int:
        self.calls.append(("retrieve", prompt.request, 0, chunks))
        return self.wrong

    def store(self, prompt: Prompt, first: int, end: int) -> int:
        self.calls.append(("store", prompt.request, first, end))
        new = set(prompt.hashes[first:end]) - self.kept
        if self.keeps:
            self.kept |= new
        return len(new)

    def end(self, request: str) -> None:
        self.calls.append(("end", request, 0, 0))


def replayed(path: Path, engine: EngineStandIn) -> Replay:
    return Replay(str(path), plan_replay(str(path), read(path), None), engine, None)


def test_the_same_is_asked_in_the_same_order(tmp_path: Path) -> None:
    path = record(tmp_path / "t", [*request("a", [1, 2, 3], 0), *request("b", [1, 2, 4], 2)])
    engine = EngineStandIn()
    outcome = replayed(path, engine).run()
    assert engine.calls == [
        ("look_up", "a", 0, 0),
        ("store", "a", 0, 3),
        ("end", "a", 0, 0),
        ("look_up", "b", 0, 2),
        ("retrieve", "b", 0, 2),
        ("store", "b", 2, 3),
        ("end", "b", 0, 0),
    ]
    assert (outcome.recorded_hits, outcome.replayed_hits, outcome.differing_lookups) == (2, 2, 0)
    assert (outcome.stored_chunks, outcome.verified_chunks, outcome.wrong_chunks) == (4, 2, 0)


def test_what_was_hit_then_and_is_not_now_is_stored(tmp_path: Path) -> None:
    path = record(tmp_path / "t", [*request("a", [1, 2, 3], 3), *request("b", [5, 6], 1)])
    engine = EngineStandIn(keeps=False)
    outcome = replayed(path, engine).run()
    assert [call for call in engine.calls if call[0] == "store"] == [("store", "a", 0, 3), ("store", "b", 0, 2)]
    assert (outcome.recorded_hits, outcome.replayed_hits, outcome.differing_lookups) == (4, 0, 2)


def test_wrong_bytes_are_counted(tmp_path: Path) -> None:
    path = record(tmp_path / "t", [*request("a", [1], 0), *request("b", [1], 1)])
    outcome = replayed(path, EngineStandIn(wrong=1)).run()
    assert outcome.wrong_chunks == 1
    assert "1 chunks byte by byte, 1 of them wrong" in outcome.as_text()


def test_a_request_without_an_end_is_ended(tmp_path: Path) -> None:
    path = record(tmp_path / "t", request("a", [1, 2], 0)[:-1])
    engine = EngineStandIn()
    replayed(path, engine).run()
    assert engine.calls[-1] == ("end", "a", 0, 0)


def test_a_store_that_ended_after_its_request_is_replayed(tmp_path: Path) -> None:
    *others, stored, ended = request("a", [1, 2], 0)
    engine = EngineStandIn()
    replayed(record(tmp_path / "t", [*others, ended, stored]), engine).run()
    assert engine.calls[-1] == ("store", "a", 0, 2)


def test_shards_of_an_engine_are_one_of_their_common_size(tmp_path: Path) -> None:
    def stored(rank: int, size: int) -> ChunksStored:
        about = {"model_name": "m", "cache_salt": "", "request_id": "a"}
        return ChunksStored(at=2.0, kv_rank=rank, chunks=2, payload_bytes=2 * size, **about)  # type: ignore[arg-type]

    hashes = LookupHashes(
        at=1.0,
        request_id="a",
        model_name="m",
        cache_salt="",
        world_size=2,
        prompt_tokens=512,
        chunk_hashes=chain([1, 2]),
    )
    path = record(tmp_path / "t", [hashes, stored(0, 1000), stored(1, 1000)])
    plan = plan_replay(str(path), read(path), None)
    assert plan.chunk_bytes == {"m": 2000}
    assert plan.chunk_tokens == 256


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(1, 300))
def test_chunks_have_tokens_of_their_own(one: bytes, other: bytes, count: int) -> None:
    tokens = chunk_tokens(one, count)
    assert len(tokens) == count
    assert all(0 <= token < 1 << 31 for token in tokens)
    assert tokens == chunk_tokens(one, count)
    if one[:4] != other[:4] and (one[3] | other[3]) < 128:
        assert tokens != chunk_tokens(other, count)


def test_what_another_engine_stored_under_the_same_name_is_not_stored_for_this_one(tmp_path: Path) -> None:
    stored = request("a", [1, 2, 3], 0, salt="other")[2]
    events = request("a", [1, 2, 3], 0)
    engine = EngineStandIn()
    replayed(record(tmp_path / "t", [*events[:2], stored, events[-1]]), engine).run()
    assert [call for call in engine.calls if call[0] == "store"] == []


def test_a_recording_that_says_more_than_fits_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes can ask for a long prompt that was recorded before."""
    monkeypatch.setattr("lmcache_observability.trace.replay_plan._CHUNKS_MAX", 1000)
    prompt = list(range(100))
    path = record(tmp_path / "t", [event for number in range(20) for event in request(f"r{number}", prompt, 0)])
    with pytest.raises(ConfigError, match=r"more than 1,000 chunks.*--max-requests 10$"):
        plan_replay(str(path), read(path), None)
    assert len(plan_replay(str(path), read(path), 10).steps) == 30
