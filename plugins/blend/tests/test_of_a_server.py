"""A whole server and clients without a model, whose chunks have bytes that follow from all tokens up to their end."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmcache_blend.events import BlendLookupAnswered, BlendRequestRefused, BlendSegmentsRead
from lmcache_blend.module import BlendModule
from lmcache_blend.service import BlendService
from lmcache_client import (
    BLEND_COMMIT,
    BLEND_LOOKUP,
    BLEND_PREPARE,
    NO_TOKENS,
    BlendAnswer,
    BlendSegment,
    BlendSlots,
    ConfigError,
    HashedKey,
)
from lmcache_client.engine_key import PADDING
from lmcache_core.app.server import Server
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_devkit.service_suite import FakeServiceContext
from plugins.blend.tests.conftest import module_of, started

SIZE = 16
SYSTEM = list(range(1000, 1000 + 2 * SIZE))
FIRST = list(range(2000, 2000 + 3 * SIZE))
SECOND = list(range(3000, 3000 + 2 * SIZE))
QUESTION = [7, 8, 9]
SECONDS = 5.0


@pytest.fixture
def engine(server: Server) -> Iterator[FakeEngine]:
    with FakeEngine(server.info.engine_endpoint) as engine:
        yield engine


def look_up(engine: FakeEngine, tokens: Sequence[int], request: str = "r", seconds: float = SECONDS) -> BlendAnswer:
    answer = engine.scheduler.call(BLEND_LOOKUP, engine.key(tokens, request, 0, len(tokens), of_worker=False), seconds)
    assert isinstance(answer, BlendAnswer)
    return answer


def prepare(
    engine: FakeEngine, tokens: Sequence[int], segments: Sequence[BlendSegment], request: str = "r"
) -> BlendSlots:
    key = engine.key(tokens, request, 0, len(tokens))
    slots = engine.worker.call(BLEND_PREPARE, key, tuple(segments), engine.instance_id)
    assert isinstance(slots, BlendSlots)
    return slots


def commit(engine: FakeEngine, request: str = "r") -> None:
    assert engine.worker.call(BLEND_COMMIT, request, engine.instance_id)


def places(answer: BlendAnswer) -> list[tuple[int, int]]:
    return [(each.old_start, each.start) for each in answer.segments]


def held(server: Server) -> int:
    return int(server.status()["l1"]["leases"])


def test_documents_in_another_order_are_found_and_read(server: Server, engine: FakeEngine) -> None:
    stored = SYSTEM + FIRST + SECOND
    assert engine.store(stored)
    prompt = [*SYSTEM, *QUESTION, *SECOND, *FIRST, *QUESTION]
    answer = look_up(engine, prompt)
    assert answer.prefix_tokens == 2 * SIZE
    new = [2 * SIZE + 3 + at * SIZE for at in range(5)]
    old = [at * SIZE for at in (5, 6, 2, 3, 4)]
    assert places(answer) == list(zip(old, new, strict=True))
    assert [each.follows for each in answer.segments] == [False, True, False, True, True]
    assert not any(each.exact for each in answer.segments)
    slots = prepare(engine, prompt, answer.segments)
    for segment, slot in zip(answer.segments, slots.slots, strict=True):
        assert slot is not None
        assert engine.read(slot) == engine.content(stored, segment.old_start // SIZE)
    assert engine.retrieve(prompt, end=answer.prefix_tokens) is not None
    commit(engine)
    engine.end()
    assert held(server) == 0


def test_a_stock_engine_is_served_as_before(engine: FakeEngine) -> None:
    assert engine.store(FIRST)
    assert engine.lookup(FIRST + SECOND) == 3
    assert engine.retrieve(FIRST) == [engine.content(FIRST, chunk) for chunk in range(3)]
    engine.end()
    assert engine.scheduler.call(BLEND_COMMIT, "unknown", 7)


def test_own_chunks_behind_a_hole_are_exact(engine: FakeEngine) -> None:
    prompt = SYSTEM + FIRST
    engine.store(prompt, end=SIZE)
    engine.store(prompt, start=2 * SIZE, end=4 * SIZE)
    answer = look_up(engine, prompt)
    assert answer.prefix_tokens == SIZE
    assert places(answer) == [(2 * SIZE, 2 * SIZE), (3 * SIZE, 3 * SIZE)]
    assert [(each.exact, each.follows) for each in answer.segments] == [(True, False), (True, True)]
    slots = prepare(engine, prompt, answer.segments).slots
    assert [engine.read(slot) for slot in slots if slot] == [engine.content(prompt, 2), engine.content(prompt, 3)]
    commit(engine)


def test_the_end_of_a_prompt_that_does_not_fill_a_chunk_is_found_nowhere_else(engine: FakeEngine) -> None:
    padded = [*FIRST[:SIZE], 1, 2, 3, *[PADDING] * (SIZE - 3)]
    engine.store(padded)
    assert look_up(engine, padded).prefix_tokens == 2 * SIZE
    assert places(look_up(engine, [5, *padded], "r2")) == [(0, 1)]
    engine.store([9, *padded[1:SIZE], *FIRST[:SIZE], *padded[SIZE:]], start=2 * SIZE)
    assert look_up(engine, [9, *padded[1:SIZE], *FIRST[:SIZE], *padded[SIZE:]], "r3").segments[1:] == ()


def test_a_salt_and_a_model_have_their_own(server: Server, engine: FakeEngine) -> None:
    engine.store(FIRST)
    endpoint = server.info.engine_endpoint
    with FakeEngine(endpoint, salt="tenant") as tenant, FakeEngine(endpoint, model="other") as other:
        for each in (tenant, other):
            assert look_up(each, [1, *FIRST]) == BlendAnswer()
        tenant.store(SECOND)
        assert places(look_up(tenant, [1, *SECOND])) == [(0, 1), (SIZE, SIZE + 1)]
    assert look_up(engine, [1, *SECOND]) == BlendAnswer()


def test_every_shard_must_have_it(server: Server) -> None:
    endpoint = server.info.engine_endpoint
    with FakeEngine(endpoint, world_size=2) as first, FakeEngine(endpoint, world_size=2, worker_id=1) as second:
        for each in (first, second):
            each.store(SYSTEM)  # which shard it is, is known from then on
        first.store(FIRST)
        assert places(look_up(first, [1, *FIRST])) == []
        second.store(FIRST)
        answer = look_up(first, [1, *FIRST], "r2")
        assert places(answer) == [(0, 1), (SIZE, SIZE + 1), (2 * SIZE, 2 * SIZE + 1)]
        for each in (first, second):
            (slot, *_) = prepare(each, [1, *FIRST], answer.segments, "r2").slots
            assert slot is not None
            assert each.read(slot) == each.content(FIRST, 0)
        assert module_of(server).counts()["chunks"] == 5, "a chunk is indexed once for all shards"


def test_many_at_once_keep_what_they_read(server: Server, engine: FakeEngine) -> None:
    engine.store(FIRST + SECOND)
    prompts = {f"r{number}": [number, *SECOND, *FIRST, number] for number in range(4)}
    answers = {request: look_up(engine, tokens, request) for request, tokens in prompts.items()}
    for request, tokens in prompts.items():
        assert None not in prepare(engine, tokens, answers[request].segments, request).slots
    engine.scheduler.clear(force=False)
    for request in prompts:
        commit(engine, request)
        engine.end(request)
    assert held(server) == 0


def test_commits_end_reads_only_when_all_have_come(module: BlendModule, engine: FakeEngine) -> None:
    engine.store(FIRST)
    tokens = [1, *FIRST]
    answer = look_up(engine, tokens)
    assert None not in prepare(engine, tokens, answer.segments).slots
    backwards = answer.segments[::-1]
    assert prepare(engine, tokens, backwards) == BlendSlots()
    commit(engine)
    assert module.counts()["reads_prepared"] == 1
    commit(engine)
    assert module.counts()["reads_prepared"] == 0
    commit(engine)


def _with(**changes: Any) -> Callable[[BlendSegment], BlendSegment]:
    return lambda segment: msgspec.structs.replace(segment, **changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with(start=-1), "behind the one before it"),
        (_with(start=2, end=2 + SIZE), "does not have the tokens"),
        (_with(end=2 + SIZE), "behind the one before it"),
        (_with(start=10**9, end=10**9 + SIZE), "behind the one before it"),
        (_with(old_start=SIZE, old_end=2 * SIZE), "does not have the tokens"),
        (_with(old_start=3, old_end=3 + SIZE), "was not a chunk"),
        (_with(old_end=2 * SIZE), "was not a chunk"),
        (_with(old_start=-SIZE, old_end=0), "was not a chunk"),
        (_with(hash=b"x" * 32), "does not have the tokens"),
        (_with(hash=b""), "does not have the tokens"),
        (_with(exact=True), "does not have the tokens"),
    ],
)
def test_segments_that_no_lookup_gives_are_refused_and_lose_nothing(
    server: Server,
    module: BlendModule,
    engine: FakeEngine,
    change: Callable[[BlendSegment], BlendSegment],
    reason: str,
) -> None:
    engine.store(FIRST)
    tokens = [1, *FIRST]
    first, *rest = look_up(engine, tokens).segments
    assert prepare(engine, tokens, [change(first), *rest]) == BlendSlots()
    commit(engine)
    refused = module.status()["refused"]
    assert isinstance(refused, dict)
    assert reason in next(iter(refused))
    assert None not in prepare(engine, tokens, [first, *rest]).slots
    assert prepare(engine, tokens, [first, first]) == BlendSlots()
    commit(engine)
    commit(engine)
    engine.end()
    assert held(server) == 0


def test_wrong_keys_are_answered_negatively(module: BlendModule, engine: FakeEngine) -> None:
    engine.store(FIRST)
    key = engine.key([1, *FIRST], "r", 0, len(FIRST), of_worker=False)
    for wrong in (
        msgspec.structs.replace(key, model_name="unknown"),
        msgspec.structs.replace(key, world_size=0),
        msgspec.structs.replace(key, world_size=300),
        msgspec.structs.replace(key, end=-1),
        msgspec.structs.replace(key, end=10**6),
        msgspec.structs.replace(key, num_kv_readers=1000),
        msgspec.structs.replace(key, request_id="r" * 5000),
        msgspec.structs.replace(key, model_name="m" * 5000),
    ):
        assert engine.scheduler.call(BLEND_LOOKUP, wrong, SECONDS) == BlendAnswer()
    assert engine.scheduler.call(BLEND_LOOKUP, key, float("nan")) == BlendAnswer()
    assert engine.worker.call(BLEND_PREPARE, key, (), 404) == BlendSlots()
    assert engine.worker.call(BLEND_PREPARE, key, (), engine.instance_id) == BlendSlots()
    assert module.counts()["refused"] >= 7
    assert look_up(engine, [1, *FIRST]).segments


def test_of_a_very_long_prompt_the_beginning_is_matched(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other lookups wait for it."""
    monkeypatch.setattr("lmcache_blend.module.MATCHED_TOKENS_MAX", 1 + 2 * SIZE, raising=False)
    engine.store(FIRST)
    assert places(look_up(engine, [1, *FIRST])) == [(0, 1), (SIZE, SIZE + 1)]


def test_a_request_id_that_is_too_long_is_not_kept(module: BlendModule, engine: FakeEngine) -> None:
    """Of reads without a commit there may be thousands."""
    engine.store(FIRST)
    answer = look_up(engine, [1, *FIRST])
    tracemalloc.start()
    try:
        for number in range(8):
            assert prepare(engine, [1, *FIRST], answer.segments, f"{number}" * 1_000_000) == BlendSlots()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4_000_000
    assert "request_id has 1000000 characters" in str(module.status()["refused"])


def test_a_worker_that_dies_gives_back_what_it_reads(server: Server, module: BlendModule, engine: FakeEngine) -> None:
    with FakeEngine(server.info.engine_endpoint) as other:
        other.store(FIRST)
        tokens = [1, *FIRST]
        assert None not in prepare(other, tokens, look_up(other, tokens).segments).slots
        other.scheduler.end_session("r")
        assert held(server) == 1
        engine.worker.unregister_engine_driven(other.instance_id)
    assert held(server) == 0
    assert module.counts()["reads_prepared"] == 0


def test_a_worker_without_shared_memory_is_refused(server: Server) -> None:
    with FakeEngine(server.info.engine_endpoint, maps_memory=False) as engine:
        engine.store(FIRST)
        tokens = [1, *FIRST]
        answer = look_up(engine, tokens)
        assert answer.segments
        assert prepare(engine, tokens, answer.segments) == BlendSlots()


def test_a_chunk_that_has_left_is_marked_and_not_asked_for_before_others(
    module: BlendModule, engine: FakeEngine
) -> None:
    engine.store(FIRST)
    tokens = [1, *FIRST]
    answer = look_up(engine, tokens)
    engine.end()
    engine.scheduler.clear()
    assert prepare(engine, tokens, answer.segments).slots == (None,) * 3
    commit(engine)
    assert look_up(engine, tokens, "r2") == BlendAnswer()
    assert module.counts()["gone"] == 3
    engine.store([*FIRST[8:], *[5] * 24])  # the same tokens from another place on
    assert places(look_up(engine, tokens, "r3")) == [(0, 9), (SIZE, SIZE + 9)]
    engine.store(FIRST)
    assert places(look_up(engine, tokens, "r4")) == [(0, 1), (SIZE, SIZE + 1), (2 * SIZE, 2 * SIZE + 1)]


def test_an_index_that_is_full_goes_on() -> None:
    small = started(offer_settings={"request_module:blend": {"index_chunks": 16}})
    try:
        with FakeEngine(small.info.engine_endpoint) as engine:
            for number in range(40):
                engine.store([number] * SIZE)
            found = [bool(look_up(engine, [99, *[number] * SIZE], f"r{number}").segments) for number in range(40)]
            assert found == [False] * 24 + [True] * 16
    finally:
        small.stop(0.0)


def test_a_restart_finds_what_l2_has(tmp_path: Path) -> None:
    adapter = {"l2_adapter": [{"type": "fs", "base_path": str(tmp_path)}]}
    first = started(**adapter)
    try:
        with FakeEngine(first.info.engine_endpoint) as engine:
            engine.store(SYSTEM + FIRST)
    finally:
        first.stop(10.0)
    second = started(**adapter)
    try:
        with FakeEngine(second.info.engine_endpoint) as engine:
            assert look_up(engine, [1, *FIRST]) == BlendAnswer()
            assert look_up(engine, SYSTEM + FIRST, "r2").prefix_tokens == 5 * SIZE
            engine.end("r2")
            engine.scheduler.clear()  # what is found now comes from L2
            answer = look_up(engine, [1, *FIRST], "r3")
            assert places(answer) == [(at * SIZE, (at - 2) * SIZE + 1) for at in (2, 3, 4)]
            (slot, *_) = prepare(engine, [1, *FIRST], answer.segments, "r3").slots
            assert slot is not None
            assert engine.read(slot) == engine.content(SYSTEM + FIRST, 2)
    finally:
        second.stop(0.0)


def test_an_index_that_fails_is_said_and_prefixes_are_found(
    module: BlendModule, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.store(FIRST)
    assert not module.conditions()
    monkeypatch.setattr(module.index, "match", lambda *_: 1 / 0)
    assert look_up(engine, FIRST).prefix_tokens == 3 * SIZE
    (condition,) = module.conditions()
    assert condition.name == "blend_index_failed"
    assert "ZeroDivisionError" in condition.reason
    assert look_up(engine, FIRST + SECOND, "r2").prefix_tokens == 3 * SIZE


def test_a_thread_that_dies_is_said(module: BlendModule, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.index, "add", lambda *_: 1 / 0)
    engine.store(FIRST)
    until = time.monotonic() + SECONDS
    while not module.conditions() and time.monotonic() < until:
        time.sleep(0.01)
    assert [each.name for each in module.conditions()] == ["blend_index_failed"]
    assert look_up(engine, FIRST).prefix_tokens == 3 * SIZE


def test_threads_store_and_look_up_at_once(server: Server) -> None:
    faults: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with FakeEngine(server.info.engine_endpoint) as engine:
                for turn in range(10):
                    document = [number * 1000 + turn] * (2 * SIZE)
                    engine.store(document)
                    answer = look_up(engine, [99_999, *document], f"{number}-{turn}")
                    assert answer.segments
                    engine.end(f"{number}-{turn}")
        except BaseException as fault:  # noqa: BLE001 - shown by the test
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert held(server) == 0


def test_the_server_does_not_start_where_no_engine_could_blend() -> None:
    given = {"engine_type": ("blend",), "supported_transfer_mode": "engine_driven", "l1_shared_memory": False}
    context = FakeServiceContext(settings=given)
    said = r"--engine-type blend .* --supported-transfer-mode engine_driven and --no-l1-shared-memory"
    with pytest.raises(ConfigError, match=said):
        BlendService(None, context)
    for other in ({"engine_type": ()}, {"supported_transfer_mode": "lmcache_driven"}, {"l1_shared_memory": True}):
        BlendService(None, replace(context, settings=given | other))


def test_metrics_count_what_was_found(server: Server, engine: FakeEngine) -> None:
    engine.store(SYSTEM + FIRST)
    answer = look_up(engine, [*SYSTEM, 1, *FIRST])
    prepare(engine, [*SYSTEM, 1, *FIRST], answer.segments)
    values = {each.name: each.value for each in server.samples() if each.name.startswith("lmcache_blend.")}
    names = ("lookup_requests", "lookup_prefix_hit_tokens", "lookup_non_prefix_hit_tokens", "lookup_storage_hits")
    assert [values[f"lmcache_blend.{name}"] for name in names] == [1, 2 * SIZE, 3 * SIZE, 3]
    assert values["lmcache_blend.lookup_hit_tokens"] == 5 * SIZE
    assert values["lmcache_blend.retrieve_chunks"] == 3
    assert values["lmcache_blend.index_chunks"] == 5
    assert server.status()["modules"]["blend"]["chunks"] == 5


@pytest.fixture
def events(server: Server, monkeypatch: pytest.MonkeyPatch) -> EventRecorder:
    """All that is published, as to a subscriber that wants it."""
    recorder, bus = EventRecorder(), server.parts.common.bus
    monkeypatch.setattr(bus, "publish", recorder.publish)
    monkeypatch.setattr(bus, "wants", recorder.wants)
    return recorder


def test_events_say_what_engines_asked_and_got(server: Server, engine: FakeEngine, events: EventRecorder) -> None:
    engine.store(SYSTEM + FIRST)
    prompt = [*SYSTEM, 1, *FIRST]
    answer = look_up(engine, prompt)
    until = time.monotonic() + SECONDS
    while not events.of(BlendLookupAnswered) and time.monotonic() < until:
        time.sleep(0.01)  # the engine has its answer first
    (found,) = events.of(BlendLookupAnswered)
    assert (found.request_id, found.model_name, found.cache_salt) == ("r", "model", "")
    assert (found.prompt_tokens, found.prefix_tokens) == (len(prompt), 2 * SIZE)
    assert (found.segments, found.segment_tokens) == (3, 3 * SIZE)
    assert 0 < found.seconds < SECONDS
    prepare(engine, prompt, answer.segments)
    (read,) = events.of(BlendSegmentsRead)
    assert read == BlendSegmentsRead(
        request_id="r", model_name="model", cache_salt="", instance_id=engine.instance_id, segments=3, gone=0
    )
    wrong = msgspec.structs.replace(answer.segments[0], old_end=SIZE - 1)
    assert prepare(engine, prompt, [wrong]) == BlendSlots()
    (refused,) = events.of(BlendRequestRefused)
    assert refused.operation == "blend_prepare"
    assert refused.reason in server.status()["modules"]["blend"]["refused"]


def test_without_a_subscriber_no_event_is_built(
    server: Server, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    for kind in (BlendLookupAnswered, BlendSegmentsRead, BlendRequestRefused):
        replaced = type(
            kind.__name__, (kind,), {"__post_init__": lambda event: built.append(type(event).__name__)}, frozen=True
        )
        monkeypatch.setattr(f"lmcache_blend.module.{kind.__name__}", replaced)
    engine.store(FIRST)
    answer = look_up(engine, [1, *FIRST])
    assert None not in prepare(engine, [1, *FIRST], answer.segments).slots
    assert prepare(engine, [1, *FIRST], answer.segments[::-1]) == BlendSlots()
    assert server.status()["modules"]["blend"]["refused"]
    assert built == []


def test_a_key_without_tokens_is_refused_with_the_reason(server: Server, engine: FakeEngine) -> None:
    engine.store(FIRST)
    about: dict[str, Any] = {"num_kv_readers": 1, "chunk_hashes": [bytes(32)] * 3, "hash_algorithm": "other"}
    key = HashedKey("model", 1, None, NO_TOKENS, 0, len(FIRST), "r", **about)
    assert engine.scheduler.call(BLEND_LOOKUP, key, SECONDS) == BlendAnswer()
    key = msgspec.structs.replace(key, worker_id=0)
    assert engine.worker.call(BLEND_PREPARE, key, (), engine.instance_id) == BlendSlots()
    commit(engine)
    refused = server.status()["modules"]["blend"]["refused"]
    assert [count for reason, count in refused.items() if "no token_ids" in reason] == [2]


def test_a_lookup_is_answered_in_its_time_while_the_index_is_in_use(module: BlendModule, engine: FakeEngine) -> None:
    engine.store(FIRST)
    assert look_up(engine, [1, *FIRST]).segments
    with module.feed._lock:
        assert look_up(engine, FIRST + SECOND, "r2", seconds=2.0).prefix_tokens == 3 * SIZE, "after its time nothing is"
        assert look_up(engine, [1, *FIRST], "r3", seconds=0.0).segments == ()
    until = time.monotonic() + SECONDS
    while module.counts()["unmatched"] < 2 and time.monotonic() < until:
        time.sleep(0.01)  # the second one was answered before it asked the index
    assert module.counts()["unmatched"] == 2
    assert look_up(engine, [1, *FIRST], "r4").segments


def test_a_match_that_takes_longer_is_not_waited_for(
    server: Server, module: BlendModule, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.store(FIRST)
    match, answered = module.feed.match, threading.Event()

    def slow(*arguments: Any) -> Any:
        answered.wait()
        return match(*arguments)

    monkeypatch.setattr(module.feed, "match", slow)
    try:
        assert look_up(engine, [1, *FIRST], seconds=0.2) == BlendAnswer()
    finally:
        answered.set()
    until = time.monotonic() + SECONDS
    while module.counts().get("late") != 1 and time.monotonic() < until:
        time.sleep(0.01)
    engine.end()
    assert (module.counts()["late"], held(server)) == (1, 0)


def test_a_segment_that_has_left_the_index_is_marked_and_the_others_are_read() -> None:
    small = started(offer_settings={"request_module:blend": {"index_chunks": 16}})
    try:
        module = module_of(small)
        with FakeEngine(small.info.engine_endpoint) as engine:
            engine.store(FIRST)
            tokens = [1, *FIRST]
            segments = look_up(engine, tokens).segments
            for number in range(14):
                engine.store([number] * SIZE)
            left = len(look_up(engine, tokens, "r2").segments)
            assert 0 < left < 3
            slots = prepare(engine, tokens, segments).slots
            commit(engine)
            assert slots[: 3 - left] == (None,) * (3 - left)
            for segment, slot in zip(segments[3 - left :], slots[3 - left :], strict=True):
                assert slot is not None
                assert engine.read(slot) == engine.content(FIRST, segment.old_start // SIZE)
            wrong = msgspec.structs.replace(segments[0], hash=segments[1].hash)
            assert prepare(engine, tokens, [wrong, *segments[1:]]) == BlendSlots()
            commit(engine)
            assert "does not have the tokens" in str(module.status()["refused"])
    finally:
        small.stop(0.0)
