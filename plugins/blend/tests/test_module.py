"""The module over real storage, with an L2 that answers when it is asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from lmcache_blend import feed, server_driven
from lmcache_blend.messages import NOTHING_FOUND, UNIFIED_LOOKUP, Found
from lmcache_blend.module import BlendModule, open_module
from lmcache_blend.settings import BlendSettings
from lmcache_client import BlendAnswer, EngineKey, encode_tokens
from lmcache_client.codec import OperationCodec
from lmcache_core import DEFERRED, Changes, Overrun
from lmcache_devkit.module_bench import CHUNK_TOKENS as SIZE
from lmcache_devkit.module_bench import MODEL, BenchCall, ModuleBench

DOCUMENT = list(range(100, 100 + 3 * SIZE))
PROMPT = [1, *DOCUMENT]
MOVED = [(0, 1), (SIZE, SIZE + 1), (2 * SIZE, 2 * SIZE + 1)]


@pytest.fixture
def bench() -> Iterator[ModuleBench]:
    with ModuleBench(l2=True) as bench:
        yield bench


@pytest.fixture
def module(bench: ModuleBench) -> Iterator[BlendModule]:
    module = open_module(BlendSettings(index_chunks=64, probe_stride=1), bench.context)
    yield module
    module.close()


class LateCall(BenchCall):
    """Its time is over when the answer comes."""

    def reply(self, result: object) -> bool:
        super().reply(result)
        return False


def look_up(module: BlendModule, tokens: Sequence[int], request: str = "r", call: BenchCall | None = None) -> BenchCall:
    call = call or BenchCall(b"c", may_wait=True)
    handler = module.handlers()[0]
    codec = OperationCodec(handler.operation)
    key = EngineKey(MODEL, 1, None, encode_tokens(tokens), 0, len(tokens), request, "", None, 1)
    frames = [memoryview(frame) for frame in codec.encode_payload((key, 5.0))]
    assert handler.function(call, *codec.decode_payload(frames)) is DEFERRED
    return call


def answered(bench: ModuleBench, module: BlendModule, tokens: Sequence[int], request: str = "r") -> BlendAnswer:
    call = look_up(module, tokens, request)
    bench.settle()
    (answer,) = call.replies
    assert isinstance(answer, BlendAnswer)
    return answer


def places(answer: BlendAnswer) -> list[tuple[int, int]]:
    return [(each.old_start, each.start) for each in answer.segments]


def asked(module: BlendModule, tokens: Sequence[int], request: str = "r") -> Found | None:
    """As an engine whose pages the server fills asks."""
    handler = next(each for each in module.handlers() if each.operation is UNIFIED_LOOKUP)
    codec = OperationCodec(handler.operation)
    key = EngineKey(MODEL, 1, None, encode_tokens(tokens), 0, len(tokens), request, "", None, 1)
    frames = [memoryview(frame) for frame in codec.encode_payload((key, 1))]
    found: Found | None = handler.function(BenchCall(b"c", may_wait=True), *codec.decode_payload(frames))
    return found


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 5.0
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_only_l2_has_is_loaded_and_held(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    call = look_up(module, PROMPT)
    assert call.deferred == (5.0, BlendAnswer())
    assert not call.replies
    bench.settle()
    assert places(call.replies[0]) == MOVED
    assert bench.storage.state_counts().leases == 1
    bench.storage.end_lookup(b"c", "r")
    assert bench.storage.state_counts().leases == 0


def test_an_answer_that_comes_too_late_holds_nothing(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    look_up(module, PROMPT, call=LateCall(b"c", may_wait=True))
    bench.settle()
    assert module.counts()["late"] == 1
    assert bench.storage.state_counts().held == 0


def test_a_lookup_that_is_asked_again_takes_the_place_of_the_first(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    first, second = look_up(module, PROMPT), look_up(module, PROMPT)
    bench.settle()
    assert first.replies == [BlendAnswer()]
    assert places(second.replies[0]) == MOVED


def test_matches_that_are_not_used_are_not_held(bench: ModuleBench, module: BlendModule) -> None:
    """The prompt's own chunks are there, but the index did not know it: what was asked for beside them is released."""
    bench.place([*DOCUMENT[SIZE:], 5], "", in_l1=True)
    bench.place(PROMPT[: 2 * SIZE], "", in_l1=True)
    module.feed.match([bench.space("").space], lambda: PROMPT, 1, 1.0)
    for match in module.index.match(bench.space("").space, PROMPT):
        if match.start % SIZE == 0:
            module.index.note(match, is_there=False)
    answer = answered(bench, module, PROMPT)
    assert answer.prefix_tokens == 2 * SIZE
    assert places(answer) == [(SIZE, 2 * SIZE + 1)]
    held = bench.storage.state_counts().held
    bench.storage.free_lookup(b"c", "r", 0, 2)
    assert bench.storage.state_counts().held == held - 2 == 1


def test_a_chunk_that_no_tier_said_to_have_is_found_again_when_one_does(
    bench: ModuleBench, module: BlendModule
) -> None:
    bench.place(DOCUMENT, "", in_l1=True)
    assert places(answered(bench, module, PROMPT)) == MOVED
    bench.storage.end_lookup(b"c", "r")
    bench.empty()
    gone = look_up(module, PROMPT, "r2")
    bench.settle()
    assert gone.replies == [BlendAnswer()]
    assert module.counts()["gone"] == 3
    bench.place(DOCUMENT, "", in_l1=True)
    assert places(answered(bench, module, PROMPT, "r3")) == MOVED


def test_a_prompt_that_was_found_is_known_although_its_tokens_were_forgotten(
    bench: ModuleBench, module: BlendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KNOWN_CHUNKS_MAX", 0)
    bench.place(DOCUMENT, "", in_l1=True)
    assert answered(bench, module, PROMPT) == BlendAnswer()
    assert module.counts()["chunks_without_tokens"] == 3
    assert answered(bench, module, DOCUMENT, "r2").prefix_tokens == 3 * SIZE
    assert places(answered(bench, module, PROMPT, "r3")) == MOVED


def test_more_at_once_than_is_kept_is_dropped_and_counted(
    bench: ModuleBench, module: BlendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "QUEUED_CHUNKS_MAX", 2)
    bench.place(DOCUMENT, "", in_l1=True)
    assert answered(bench, module, PROMPT) == BlendAnswer()
    assert module.counts()["chunks_dropped"] >= 3


def test_tokens_are_forgotten_after_a_while(bench: ModuleBench, module: BlendModule) -> None:
    bench.hashes(DOCUMENT, "")
    wait_for(lambda: len(module.feed._known) == 3)
    bench.clock.advance(feed.KNOWN_SECONDS + 1)
    wait_for(lambda: not module.feed._known)


def test_what_l1_has_is_read_where_changes_were_lost(
    bench: ModuleBench, module: BlendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = bench.cache.feed
    read, lost = journal.read, [True]

    def losing(first: int, keys: int) -> Changes | Overrun:
        if lost and journal.end > first:
            return Overrun(lost.pop() + journal.end)
        return read(first, keys)

    monkeypatch.setattr(journal, "read", losing)
    bench.place(DOCUMENT, "", in_l1=True)
    wait_for(lambda: len(module.index) == 3)
    assert module.counts()["journal_overruns"] == 1
    assert places(answered(bench, module, PROMPT)) == MOVED


def test_a_stride_finds_what_lies_behind_a_match(bench: ModuleBench) -> None:
    module = open_module(BlendSettings(index_chunks=64, probe_stride=5), bench.context)
    try:
        bench.place(DOCUMENT, "", in_l1=True)
        assert places(answered(bench, module, [1] * 10 + DOCUMENT)) == [(at * SIZE, 10 + at * SIZE) for at in range(3)]
        assert places(answered(bench, module, [1] * 11 + DOCUMENT, "r2")) == []
    finally:
        module.close()


def test_what_is_asked_again_and_again_has_one_lookup(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    assert [asked(module, PROMPT) for _ in range(3)] == [None, None, None]
    assert module.counts()["lookups"] == 1
    bench.settle()
    found = asked(module, PROMPT)
    assert found is not None
    assert [(each.old_st, each.cur_st) for each in found.non_prefix_segments] == MOVED
    assert bench.storage.state_counts().leases == 1
    bench.storage.end_lookup(b"c", "r")
    assert bench.storage.state_counts().leases == 0


def test_another_prompt_of_the_same_name_is_another_lookup(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    assert asked(module, PROMPT) is None
    assert asked(module, [5, 5, 5]) == NOTHING_FOUND
    assert asked(module, [1, *PROMPT]) is None
    bench.settle()
    found = asked(module, [1, *PROMPT])
    assert found is not None
    assert [each.cur_st for each in found.non_prefix_segments] == [2, 2 + SIZE, 2 + 2 * SIZE]


def test_a_lookup_that_was_ended_begins_anew(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    assert asked(module, PROMPT) is None
    bench.settle()
    bench.storage.end_lookup(b"c", "r")
    found = asked(module, PROMPT)
    bench.settle()
    found = found or asked(module, PROMPT)
    assert found is not None
    assert len(found.non_prefix_segments) == 3
    assert bench.storage.state_counts().leases == 1
    assert module.counts()["lookups"] == 2
    bench.storage.end_lookup(b"c", "r")


def test_lookups_that_are_not_fetched_are_forgotten(bench: ModuleBench, module: BlendModule) -> None:
    bench.place(DOCUMENT, "", in_l1=False)
    for number in range(5):
        assert asked(module, PROMPT, f"r{number}") is None
    bench.clock.advance(server_driven.PENDING_SECONDS + 1)
    assert asked(module, PROMPT, "late") is None
    assert len(module._server_driven._pending) == 1


def test_lookups_that_are_not_fetched_take_bounded_memory(
    bench: ModuleBench, module: BlendModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_driven, "PENDING_TOKENS_MAX", 3 * len(PROMPT))
    bench.place(DOCUMENT, "", in_l1=False)
    for number in range(5):
        assert asked(module, PROMPT, f"r{number}") is None
    pending = module._server_driven._pending
    assert [request for _, request in pending] == ["r2", "r3", "r4"]
    bench.settle()
    for number in (2, 3, 4, 0):
        found = asked(module, PROMPT, f"r{number}")
        bench.settle()
        found = found or asked(module, PROMPT, f"r{number}")
        assert found is not None
        assert len(found.non_prefix_segments) == 3, "also where it began anew"
    assert not pending
    assert module._server_driven._pending_tokens == 0
