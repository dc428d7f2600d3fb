"""Prefetches that an operator orders: what comes stays in L1 as cached, part by part."""

from __future__ import annotations

import select

import pytest

from core.tests.storage.storage_harness import (
    CHUNKS,
    LOOKUP_TIMEOUT,
    SLOT,
    StorageHarness,
    nothing_is_left,
    open_storage,
    space,
)
from lmcache_admin import prefetch_orders
from lmcache_admin.pins import PinRefusedError, PinSubject
from lmcache_admin.prefetch_orders import OrderRefusedError, OrderState, OrderView, PinWish
from lmcache_core.contracts.cache_control import AddressedChunks
from lmcache_core.contracts.policies import InsertFacts
from lmcache_core.contracts.storage import Shard
from lmcache_core.l1.index import Inserted
from plugins.admin.tests.operator_parts import orders_of, pins_of

WISH = PinWish("p", PinSubject("m", ""), None)


def prompt(*wanted: bytes, ranks: tuple[int, ...] = (0,)) -> AddressedChunks:
    return AddressedChunks(tuple(Shard((space(rank),)) for rank in ranks), wanted, is_prompt=True)


def view(harness: StorageHarness, order: OrderView) -> OrderView:
    found = orders_of(harness).find(order.request_id)
    assert found is not None
    return found


def result(harness: StorageHarness, order: OrderView) -> tuple[OrderState, int, int, int]:
    now = view(harness, order)
    return now.state, now.total_keys, now.found_keys, now.loaded_keys


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_orders, "PART_CHUNKS", 3)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_a_prompt_comes_part_by_part_and_stays(harness: StorageHarness, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        harness.put_in_l2(*CHUNKS, into=space(rank))
    harness.cache.take_access_log()
    order = orders_of(harness).submit(prompt(*CHUNKS, ranks=ranks), None)
    assert (order.state, order.chunks) == (OrderState.PENDING, 8)
    harness.settle()
    keys = 8 * len(ranks)
    assert result(harness, order) == (OrderState.COMPLETED, keys, keys, keys)
    assert nothing_is_left(harness)
    assert harness.cache.contents.state_counts().cached == keys, "nothing of it was only passing"
    facts: list[InsertFacts] = [note.facts for note in harness.cache.take_access_log() if isinstance(note, Inserted)]
    assert sorted(fact.first_chunk for fact in facts) == sorted([*range(8)] * len(ranks)), "places in the prompt"


def test_what_l1_has_is_not_loaded_again(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(*CHUNKS[:4])
    harness.settle()
    order = orders_of(harness).submit(prompt(*CHUNKS), None)
    harness.settle()
    assert result(harness, order) == (OrderState.COMPLETED, 8, 8, 4)
    again = orders_of(harness).submit(prompt(*CHUNKS), None)
    assert result(harness, again) == (OrderState.COMPLETED, 8, 8, 0), "at once, where nothing is missing"


def test_a_prompt_ends_at_its_first_gap_and_single_chunks_do_not(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:2], *CHUNKS[3:])
    order = orders_of(harness).submit(prompt(*CHUNKS), None)
    harness.settle()
    assert result(harness, order) == (OrderState.COMPLETED, 8, 2, 2)
    sparse = orders_of(harness).submit(prompt(*reversed(CHUNKS))._replace(is_prompt=False), None)
    harness.settle()
    assert result(harness, sparse) == (OrderState.COMPLETED, 8, 7, 5)
    assert nothing_is_left(harness)


def test_it_is_pinned_as_it_comes(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    order = orders_of(harness).submit(prompt(*CHUNKS), WISH)
    harness.settle()
    assert result(harness, order) == (OrderState.COMPLETED, 8, 8, 8)
    assert view(harness, order).pinned_keys == 8
    assert pins_of(harness).totals().size_bytes == 8 * SLOT
    assert harness.prefetch.status()["l1_bytes"] == 0, "what is pinned takes no room of prefetches"
    assert harness.storage.clear(force=False) == 0
    pins_of(harness).unpin("p")
    assert nothing_is_left(harness)


def test_more_than_may_be_pinned_is_refused_or_reported() -> None:
    with open_storage(StorageHarness(pin_slots=4)) as harness:
        harness.put_in_l2(*CHUNKS)
        with pytest.raises(PinRefusedError, match="larger --l1-pin-max-ratio"):
            orders_of(harness).submit(prompt(*CHUNKS), WISH)
        order = orders_of(harness).submit(prompt(*CHUNKS[:4]), WISH)
        other = orders_of(harness).submit(prompt(*CHUNKS[4:]), WISH._replace(name="q"))
        harness.settle()
        states = [view(harness, each) for each in (order, other)]
        assert [each.found_keys for each in states] == [4, 4]
        assert sum(each.pinned_keys for each in states) <= 4
        assert any("unpin something" in each.note for each in states)
        pins_of(harness).clear()


def test_a_pin_that_is_removed_meanwhile_is_reported(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    order = orders_of(harness).submit(prompt(*CHUNKS), WISH)
    pins_of(harness).unpin("p")
    harness.settle()
    now = view(harness, order)
    assert (now.found_keys, now.pinned_keys, now.note) == (8, 0, "pin 'p' was removed meanwhile")
    assert nothing_is_left(harness)


def test_an_order_that_finds_nothing_leaves_no_pin(harness: StorageHarness) -> None:
    order = orders_of(harness).submit(prompt(*CHUNKS), WISH)
    harness.settle()
    assert result(harness, order) == (OrderState.COMPLETED, 8, 0, 0)
    assert pins_of(harness).everything() == []


def test_a_cancelled_order_brings_no_more(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    order = orders_of(harness).submit(prompt(*CHUNKS), None)
    harness.turn()
    harness.finish("lookup")
    cancelled = orders_of(harness).cancel(order.request_id)
    assert cancelled is not None
    assert cancelled.state is OrderState.CANCELLED
    woken = select.poll()
    woken.register(harness.prefetch._inbox, select.POLLIN)
    assert woken.poll(0), "the controller does not find out by its deadline alone"
    harness.settle()
    assert result(harness, order)[0] is OrderState.CANCELLED
    assert nothing_is_left(harness)
    assert orders_of(harness).cancel("prefetch-0") is None
    finished = orders_of(harness).cancel(order.request_id)
    assert finished is not None
    assert finished.state is OrderState.CANCELLED


def test_a_part_whose_time_is_over_is_gone_on_with_while_it_gets_somewhere(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    order = orders_of(harness).submit(prompt(*CHUNKS[:3]), None)
    harness.turn()
    harness.finish("lookup")
    adapter, job = harness.jobs("load")[0]
    adapter.finish_partly(job, [True, False, False])
    harness.pass_time(LOOKUP_TIMEOUT + 1)
    harness.settle()
    assert result(harness, order)[:3] == (OrderState.COMPLETED, 3, 3)


def test_one_that_is_late_again_and_again_ends(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it loads could leave L1 again as fast as it comes."""
    monkeypatch.setattr(prefetch_orders, "LATE_MAX", 1)
    harness.put_in_l2(*CHUNKS)
    order = orders_of(harness).submit(prompt(*CHUNKS)._replace(is_prompt=False), None)
    for _ in range(2):
        assert view(harness, order).state is OrderState.PENDING
        harness.turn()
        harness.finish("lookup")
        adapter, job = harness.jobs("load")[0]
        adapter.finish_partly(job, [True, False, True])
        harness.clock.advance(LOOKUP_TIMEOUT + 1)
        harness.turn()
    assert result(harness, order) == (OrderState.COMPLETED, 8, 4, 4)
    assert nothing_is_left(harness)


def test_one_that_gets_nowhere_ends(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    order = orders_of(harness).submit(prompt(*CHUNKS), None)
    harness.turn()
    harness.pass_time(LOOKUP_TIMEOUT + 1)
    assert result(harness, order) == (OrderState.COMPLETED, 8, 0, 0)
    harness.settle()
    assert nothing_is_left(harness)


def test_what_a_request_loads_at_that_moment_stays_for_the_order(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:3])
    harness.ask(*CHUNKS[:3])
    harness.turn()
    harness.finish("lookup")
    order = orders_of(harness).submit(prompt(*CHUNKS[:3]), None)
    harness.turn()
    harness.finish("lookup")
    harness.settle()
    assert result(harness, order)[2] == 3
    assert harness.answer() == 3
    harness.storage.end_lookup(b"c", "r")
    assert harness.cache.contents.state_counts().cached == 3


def test_there_is_a_most_at_once_and_old_ones_are_forgotten(
    harness: StorageHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch_orders, "UNDER_WAY_MAX", 2)
    harness.put_in_l2(*CHUNKS)
    orders = [orders_of(harness).submit(prompt(*CHUNKS), None) for _ in range(2)]
    with pytest.raises(OrderRefusedError, match="2 prefetches are under way, which is the most"):
        orders_of(harness).submit(prompt(*CHUNKS), WISH)
    assert pins_of(harness).everything() == []
    harness.settle()
    assert [view(harness, each).found_keys for each in orders] == [8, 8]
    assert not any(order.wanted for order in orders_of(harness)._orders.values()), "it is long, and of no use any more"
    monkeypatch.setattr(prefetch_orders, "KEPT_MAX", 1)
    assert orders_of(harness).find(orders[0].request_id) is None
    assert view(harness, orders[1]).found_keys == 8
    harness.clock.advance(prefetch_orders.KEPT_SECONDS + 1)
    assert [orders_of(harness).find(each.request_id) for each in orders] == [None, None]


def test_without_an_adapter_that_answers_it_is_what_l1_has(harness: StorageHarness) -> None:
    harness.put(*CHUNKS[:2])
    harness.settle()
    harness.ask(CHUNKS[7])
    harness.turn()
    for adapter, job in harness.jobs("lookup"):
        adapter.time_out(job)
    harness.turn()
    assert not harness.client.answers
    order = orders_of(harness).submit(prompt(*CHUNKS), None)
    assert result(harness, order) == (OrderState.COMPLETED, 8, 2, 0)
    for adapter in harness.adapters:
        for job in list(adapter.keeping):
            adapter.release_buffers(job)
    harness.settle()
    harness.storage.end_lookup(b"c", "r")


def test_a_cancelled_order_pins_nothing_that_it_does_not_hold_any_more(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS)
    harness.put(CHUNKS[3])
    harness.settle()
    order = orders_of(harness).submit(prompt(*CHUNKS), WISH)
    harness.turn()
    for verb in ("lookup", "load", "lookup"):
        harness.finish(verb)
    assert view(harness, order).pinned_keys == 3
    orders_of(harness).cancel(order.request_id)
    harness.storage.clear(force=False)
    harness.settle()
    assert view(harness, order).pinned_keys == pins_of(harness).totals().objects == 3
    pins_of(harness).unpin("p")
    assert nothing_is_left(harness)


def test_an_order_that_finds_nothing_leaves_the_pin_of_another_one(harness: StorageHarness) -> None:
    harness.put_in_l2(*CHUNKS[:6])
    order = orders_of(harness).submit(prompt(*CHUNKS[:6]), WISH)
    futile = orders_of(harness).submit(prompt(CHUNKS[7]), WISH)
    assert orders_of(harness).cancel(futile.request_id) is not None
    harness.settle()
    assert view(harness, order).pinned_keys == 6
    pins_of(harness).unpin("p")
    assert nothing_is_left(harness)
