"""What a subscriber has learned is what L1 has, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core import Overrun
from lmcache_devkit.module_bench import CHUNK_TOKENS, MODEL, BenchCall, BenchStream, ModuleBench
from lmcache_kv_events import module as kv_events
from lmcache_kv_events.module import KVEventBatch, KVEventsModule, open_module

SECONDS = 5.0


class Subscriber:
    """Applies batches as an engine does: `lost`, or another incarnation, withdraws everything."""

    def __init__(self, module: KVEventsModule, model: str = MODEL, cursor: int = 0, max_events: int = 3) -> None:
        call = BenchCall(b"engine", may_wait=False)
        module.subscribe(call, 1, model, cursor, max_events)
        self.stream: BenchStream = call.streams[0]
        self.chunks: dict[bytes, Any] = {}
        self.batches: list[KVEventBatch] = []

    def take(self) -> None:
        """Everything that is there."""
        while len(self.stream.results) > len(self.batches):
            batch = self.stream.results[len(self.batches)]
            self.batches.append(batch)
            if batch.lost:
                self.chunks.clear()
            for event in batch.events:
                for chunk in event.block_hashes:
                    if event.kind == "stored":
                        self.chunks[chunk] = event
                    else:
                        self.chunks.pop(chunk, None)
            self.stream.grant()

    def knows(self, hashes: Sequence[bytes]) -> bool:
        self.take()
        return set(self.chunks) == set(hashes)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def bench() -> Iterator[ModuleBench]:
    with ModuleBench() as bench:
        yield bench


@pytest.fixture
def module(bench: ModuleBench) -> Iterator[KVEventsModule]:
    module = open_module(None, bench.context)
    yield module
    module.close()


def prompt(number: int, chunks: int) -> list[int]:
    return [number, *range(70_000, 70_000 + chunks * CHUNK_TOKENS - 1)]


def test_stored_chunks_come_with_their_tokens_and_parents(bench: ModuleBench, module: KVEventsModule) -> None:
    subscriber = Subscriber(module)
    tokens = prompt(1, 5)
    bench.place(tokens, "", in_l1=True)
    hashes = bench.hashes(tokens, "")
    wait_for(lambda: subscriber.knows(hashes))
    for at, chunk in enumerate(hashes):
        event = subscriber.chunks[chunk]
        assert event.parent_block_hash == (hashes[at - 1] if at else None)
        assert event.token_ids == tokens[at * CHUNK_TOKENS : (at + 1) * CHUNK_TOKENS]
        assert (event.medium, event.model_name) == ("CPU", MODEL)
    assert all(len(batch.events) <= 3 for batch in subscriber.batches)
    assert module.status()["without_tokens"] == 0


def test_a_later_subscriber_gets_what_is_there_and_then_what_changes(
    bench: ModuleBench, module: KVEventsModule
) -> None:
    first, second = prompt(1, 4), prompt(2, 4)
    bench.place(first, "", in_l1=True)
    subscriber = Subscriber(module)
    wait_for(lambda: subscriber.knows(bench.hashes(first, "")))
    bench.place(second, "", in_l1=True)
    wait_for(lambda: subscriber.knows([*bench.hashes(first, ""), *bench.hashes(second, "")]))
    bench.storage.clear(force=False)
    wait_for(lambda: subscriber.knows([]))


def test_nothing_of_tenants_other_models_or_other_shards(bench: ModuleBench, module: KVEventsModule) -> None:
    other = Subscriber(module, "another")
    subscriber = Subscriber(module)
    bench.place(prompt(1, 3), "tenant", in_l1=True)
    bench.place(prompt(2, 1), "", in_l1=True)
    wait_for(lambda: subscriber.knows(bench.hashes(prompt(2, 1), "")))
    assert other.knows([])
    change = next(iter(module._feed.snapshot(1))).objects[0]
    for space in (replace(change.space, object_group=1), replace(change.space, kv_rank=0x02010201)):
        assert not module._subscriptions[1].wants(change._replace(space=space))


def test_what_a_slow_subscriber_missed_is_sent_anew(
    bench: ModuleBench, module: KVEventsModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = Subscriber(module)
    bench.place(prompt(1, 2), "", in_l1=True)
    wait_for(lambda: subscriber.knows(bench.hashes(prompt(1, 2), "")))
    read = module._feed.read
    missed: list[int] = []

    def overrun_once(first: int, keys: int) -> object:
        if not missed:
            missed.append(first)
            return Overrun(first + 1)
        return read(first, keys)

    monkeypatch.setattr(module._feed, "read", overrun_once)  # of this feed alone: other tests' servers may read theirs
    bench.place(prompt(2, 2), "", in_l1=True)
    both = [*bench.hashes(prompt(1, 2), ""), *bench.hashes(prompt(2, 2), "")]
    # What was being read when `read` was replaced may have brought both already.
    wait_for(lambda: subscriber.knows(both) and any(batch.lost for batch in subscriber.batches))
    assert module.status()["lost"] == 1


def test_a_cursor_goes_on_where_it_was_and_an_old_one_begins_anew(bench: ModuleBench, module: KVEventsModule) -> None:
    stays = Subscriber(module)
    bench.place(prompt(1, 2), "", in_l1=True)
    first = Subscriber(module)
    wait_for(lambda: first.knows(bench.hashes(prompt(1, 2), "")))
    assert first.batches[-1].next_cursor == 0, "of a part of a snapshot"
    wait_for(lambda: module._subscriptions[1].snapshot is None)
    bench.place(prompt(2, 2), "", in_l1=True)
    all_of = [*bench.hashes(prompt(1, 2), ""), *bench.hashes(prompt(2, 2), "")]
    wait_for(lambda: first.knows(all_of))
    cursor = first.batches[-1].next_cursor
    assert cursor
    bench.place(prompt(3, 2), "", in_l1=True)
    again = Subscriber(module, cursor=cursor)
    wait_for(lambda: again.knows(bench.hashes(prompt(3, 2), "")))
    foreign = Subscriber(module, cursor=10**9)
    wait_for(lambda: foreign.knows([*all_of, *bench.hashes(prompt(3, 2), "")]))
    assert foreign.batches[0].lost
    assert stays.stream.is_open


def test_nothing_runs_without_a_subscriber(bench: ModuleBench, module: KVEventsModule) -> None:
    assert not module.status()["subscribers"]
    subscriber = Subscriber(module)
    wait_for(lambda: module._feed.journal.is_open)  # type: ignore[attr-defined]
    subscriber.stream.is_open = False
    wait_for(lambda: not module._feed.journal.is_open)  # type: ignore[attr-defined]
    assert module.status()["subscribers"] == 0
    bench.clock.advance(kv_events.KEPT_SECONDS + 1)
    wait_for(lambda: module._thread is None)
    again = Subscriber(module)
    bench.place(prompt(1, 1), "", in_l1=True)
    wait_for(lambda: again.knows(bench.hashes(prompt(1, 1), "")))


def test_tokens_that_are_not_known_are_left_out(
    bench: ModuleBench, module: KVEventsModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "BOUND_CHUNKS", 2)
    subscriber = Subscriber(module)
    bench.place(prompt(1, 5), "", in_l1=True)
    hashes = bench.hashes(prompt(1, 5), "")
    wait_for(lambda: subscriber.knows(hashes))
    assert [bool(subscriber.chunks[chunk].token_ids) for chunk in hashes] == [False] * 3 + [True] * 2
    assert module.status()["without_tokens"] == 3


steps = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 5), st.integers(1, 6)), st.just(("clear",)), st.just(("take",))
    ),
    max_size=20,
)


@settings(max_examples=30, deadline=None)
@given(steps=steps, max_events=st.integers(1, 9))
def test_a_subscriber_knows_what_l1_has(steps: Sequence[tuple[Any, ...]], max_events: int) -> None:
    with ModuleBench() as bench:
        module = open_module(None, bench.context)
        try:
            subscriber = Subscriber(module, max_events=max_events)
            held: set[bytes] = set()
            for step in steps:
                if step[0] == "store":
                    tokens = prompt(step[1], step[2])
                    bench.place(tokens, "", in_l1=True)
                    held |= set(bench.hashes(tokens, ""))
                elif step[0] == "clear":
                    bench.storage.clear(force=False)
                    held.clear()
                else:
                    subscriber.take()
            wait_for(lambda: subscriber.knows(list(held)))
        finally:
            module.close()
