"""The storage machine with an operator at work: pins, prefetches that are ordered, single objects that are removed.

All the requirements of test_manager_machine.py hold, and besides: what is pinned is there, with its right bytes, and within its
bound; and a listing shows every slot in use once.
"""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from core.tests.storage.test_manager_machine import (
    CHUNKS,
    PAYLOAD,
    PROMPTS,
    SPACES,
    STEPS,
    STEPS_PER_RUN,
    StorageMachine,
    content,
)
from lmcache_admin import l1_listing, pins, prefetch_orders
from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.l1_listing import L1Listing
from lmcache_admin.pins import PinRefusedError, Pins, PinSubject
from lmcache_admin.prefetch_orders import OrderRefusedError, OrderState, PinWish, PrefetchOrders
from lmcache_core.contracts.cache_control import AddressedChunks
from lmcache_core.contracts.storage import Shard
from lmcache_core.kernels.choice import choose_kernels
from lmcache_core.model.keys import ObjectKey
from lmcache_core.storage.cache_control import OperatorCache

PIN_BYTES = 4 * 2 * PAYLOAD
NAMES = st.sampled_from(("x", "y"))
RANKS = st.sampled_from(((0,), (1,), (0, 1)))
LIVES = st.sampled_from((None, 10.0, 400.0))
SUBJECT = PinSubject("m", "")


def named(chunks: tuple[bytes, ...], ranks: tuple[int, ...], is_prompt: bool) -> AddressedChunks:
    return AddressedChunks(tuple(Shard((SPACES[rank],)) for rank in ranks), chunks, is_prompt)


class OperatorMachine(StorageMachine):
    def __init__(self) -> None:
        super().__init__()
        for module, name, few in ((prefetch_orders, "PART_CHUNKS", 2), (pins, "SLICE", 3), (l1_listing, "SLICE", 3)):
            self.patches.enter_context(patch.object(module, name, few))
        cache = OperatorCache(self.cache, self.storage, self.prefetch, self.clock)
        self.pins = Pins(cache, self.clock)
        self.pins.max_bytes = PIN_BYTES
        self.listing = L1Listing(cache, self.pins)
        self.prefetches = PrefetchOrders(cache, self.pins, self.clock)
        self.orders: list[str] = []

    @rule(name=NAMES, prompt=st.sampled_from(PROMPTS), length=st.integers(1, 6), ranks=RANKS, life=LIVES)
    def pin(
        self, name: str, prompt: tuple[bytes, ...], length: int, ranks: tuple[int, ...], life: float | None
    ) -> None:
        before = self.cache.contents.state_counts().leases
        try:
            self.pins.pin(name, SUBJECT, life, named(prompt[:length], ranks, is_prompt=True))
        except PinRefusedError:
            assert self.cache.contents.state_counts().leases == before, "what was refused holds nothing"

    @rule(name=NAMES)
    def unpin(self, name: str) -> None:
        known = {view.name for view in self.pins.everything()}
        assert (self.pins.unpin(name) is not None) == (name in known)

    @rule(
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, 6),
        ranks=RANKS,
        is_prompt=st.booleans(),
        name=st.sampled_from((None, "x", "y")),
    )
    def order(
        self, prompt: tuple[bytes, ...], length: int, ranks: tuple[int, ...], is_prompt: bool, name: str | None
    ) -> None:
        wish = None if name is None else PinWish(name, SUBJECT, None)
        try:
            ordered = self.prefetches.submit(named(prompt[:length], ranks, is_prompt), wish)
        except (PinRefusedError, OrderRefusedError):
            return
        self.orders.append(ordered.request_id)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.orders:
            request_id = data.draw(st.sampled_from(self.orders))
            view = self.prefetches.cancel(request_id)
            assert view is None or view.state is not OrderState.PENDING

    @rule(chunks=st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=4), rank=st.integers(0, 1), force=st.booleans())
    def remove(self, chunks: list[bytes], rank: int, force: bool) -> None:
        keys = [ObjectKey(SPACES[rank].space, chunk) for chunk in chunks]
        removal = self.listing.remove(keys, force)
        assert sum(removal) == len(set(chunks))
        assert not (force and removal.skipped)
        if force:
            self.asked.clear()  # what is held stays where it is, and is not found any more

    @invariant()
    def what_is_pinned_is_there(self) -> None:
        self_pins = self.pins
        holders = Counter(slot for pin in self_pins._pins.values() for slot in pin.slots)
        assert holders == self_pins._pinned
        assert self_pins._pinned_bytes == 2 * PAYLOAD * len(holders) <= PIN_BYTES
        for pin in self_pins._pins.values():
            leased = Counter(slot for each in pin.references for slot in each.slots)
            assert leased == Counter(dict.fromkeys(pin.slots, 1))
            assert all(each.slots for each in pin.references), "an empty lease that is not ended"
            assert pin.slots or pin.users, "a pin that holds nothing"
        for slot in holders:
            state = self.cache._table.state(slot)
            assert state is not None
            assert state[3], "a pinned object that is not found"
            key = self.cache.key_of(slot)
            rank = 0 if key.space == SPACES[0].space else 1
            assert self.storage.payload(slot) == content(rank, key.chunk_hash)

    @invariant()
    def a_listing_is_complete(self) -> None:
        found = 0
        at: int | None = 0
        while at is not None:
            page = self.listing.page(at, 5, KeyFilter())
            found += len(page.objects)
            at = page.next_slot
        counts = self.cache.contents.state_counts()
        assert found == counts.total - counts.free

    @invariant()
    def orders_add_up(self) -> None:
        for request_id in self.orders:
            view = self.prefetches.find(request_id)
            if view is not None:
                assert 0 <= view.pinned_keys <= view.found_keys <= view.total_keys

    def all_leave(self) -> None:
        self.pins.clear()
        for request_id in self.orders:
            self.prefetches.cancel(request_id)
        super().all_leave()


class CompiledOperatorMachine(OperatorMachine):
    """Half of the steps, of which there are half as many as there, on the compiled kernels, where they are installed."""

    kernels = choose_kernels("auto")


TestOperator, TestCompiledOperator = pytest.mark.slow(OperatorMachine.TestCase), CompiledOperatorMachine.TestCase
TestOperator.settings = TestCompiledOperator.settings = settings(
    max_examples=-(-STEPS // (4 * STEPS_PER_RUN)), stateful_step_count=STEPS_PER_RUN, deadline=None
)
