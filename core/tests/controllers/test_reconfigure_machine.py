"""Hypothesis drives storage, controllers and adapters as `test_manager_machine` does, while adapters come and go, limits
change, and one eviction policy follows another.

What that machine promises holds all the time.  Beside it: an adapter that is being drained is given no new stores, one that
was removed is asked for nothing, whatever it does later with its borrowed buffers does no harm, and a policy that took over
knows exactly what L1 holds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from core.tests.storage.scripted_adapter import ScriptedAdapter
from core.tests.storage.test_manager_machine import JOB_TIMEOUT, PREFETCH_BYTES, SLOTS, StorageMachine
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.builtin.policies import open_load_from_first, open_store_everywhere
from lmcache_core.contracts.completion import JobId
from lmcache_core.contracts.counts import StoreView
from lmcache_core.contracts.policies import EvictionDemand, PrefetchPolicy, RequestFacts
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import DropRule, StoreLimits, StoreQueue
from lmcache_core.jobs.queues import PendingCall
from lmcache_core.model.keys import ObjectKey

STEPS_PER_RUN = 60
STEPS = int(os.environ.get("LMCACHE_MACHINE_STEPS", "10000"))
ADAPTERS_MAX = 4


class CountingAdapter(ScriptedAdapter):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def _wait(self, verb: Any, keys: Sequence[ObjectKey], buffers: Any = ()) -> JobId:
        self.asked[verb] += 1
        return super()._wait(verb, keys, buffers)


class EveryQueue:
    """The store controller's views, with those of adapters that are gone: their stores have happened, too."""

    def __init__(self, store: StoreController) -> None:
        self._store = store
        self._known: dict[str, StoreQueue] = {}

    def views(self) -> dict[str, StoreView]:
        self._known |= {queue.client.name: queue for queue in self._store._queues}
        return {name: queue.view(0.0) for name, queue in self._known.items()}


class ReconfigureMachine(StorageMachine):
    def __init__(self) -> None:
        super().__init__()
        self.facts._store = cast(StoreController, EveryQueue(self.store))
        for client, adapter in zip(self.clients, [CountingAdapter(), CountingAdapter()], strict=True):
            self.adapters[client.index].close(0)
            self.adapters[client.index] = client.adapter = adapter
        self.serving = list(self.clients)
        self.closed: dict[AdapterClient, tuple[PendingCall, int | None]] = {}
        """Ports that take no stores, with the change that made them so and what they had admitted when it was made."""
        self.leaving: dict[AdapterClient, tuple[PendingCall, PendingCall]] = {}
        self.silent: dict[AdapterClient, int] = {}
        """Removed ones, and how often each had been asked for something when the controllers knew."""

    def adapter_of(self, client: AdapterClient) -> CountingAdapter:
        adapter = client.adapter
        assert isinstance(adapter, CountingAdapter)
        return adapter

    # --- adapters come and go

    @rule(turns=st.booleans())
    def an_adapter_comes(self, turns: bool) -> None:
        if len(self.serving) == ADAPTERS_MAX:
            return
        adapter = CountingAdapter()
        index = len(self.clients)
        client = AdapterClient(index, f"cue{index}", adapter, adapter.capabilities, self.clock, JOB_TIMEOUT)
        self.adapters.append(adapter)
        self.clients.append(client)
        self.serving.append(client)
        self.prefetch.add_adapter(client)
        self.store.add_adapter(client)
        if turns:
            self.turn()

    @rule(data=st.data(), again=st.booleans())
    def an_adapter_is_drained(self, data: st.DataObject, again: bool) -> None:
        if not self.serving:
            return
        client = data.draw(st.sampled_from(self.serving))
        change = self.store.drain_adapter(client, again=again)
        if again:
            self.closed.pop(client, None)
        else:
            self.closed.setdefault(client, (change, None))

    @rule(data=st.data())
    def an_adapter_is_removed(self, data: st.DataObject) -> None:
        if not self.serving:
            return
        client = data.draw(st.sampled_from(self.serving))
        self.serving.remove(client)
        self.closed.pop(client, None)
        self.leaving[client] = (self.store.remove_adapter(client), self.prefetch.remove_adapter(client))

    @rule()
    def removed_adapters_are_abandoned(self) -> None:
        """The deadline of all removals is over."""
        self.turn()
        for client in [client for client, changes in self.leaving.items() if all(change.wait(0) for change in changes)]:
            del self.leaving[client]
            client.abandon()
            client.expire(self.clock.monotonic())
            client.shut()
            assert client.jobs.unanswered == 0
            self.adapter_of(client).pins.clear()
        self.turn()

    @rule()
    def a_stalled_adapter_is_removed_under_loads(self) -> None:
        """The worst case: all of its jobs are under way, and end after their callers have stopped waiting."""
        if not self.serving:
            return
        client = self.serving.pop(0)
        self.closed.pop(client, None)
        self.leaving[client] = (self.store.remove_adapter(client), self.prefetch.remove_adapter(client))
        self.removed_adapters_are_abandoned()
        adapter = self.adapter_of(client)
        for job in list(adapter.waiting):
            adapter.finish(job)
        adapter.pins.clear()
        self.turn()
        assert client.borrowed_bytes == sum(buffer.length for job in adapter.keeping for buffer in job.buffers)

    # --- other changes

    @rule(
        objects=st.integers(0, 12),
        seconds=st.sampled_from((None, 1.0)),
        drop=st.sampled_from(DropRule),
        in_flight=st.integers(1, 3),
        share=st.integers(2, 7),
    )
    def limits_change(self, objects: int, seconds: float | None, drop: DropRule, in_flight: int, share: int) -> None:
        self.store.limit(StoreLimits(objects * 8192, seconds, drop))
        self.prefetch.bound(max_in_flight=in_flight, l1_max_bytes=PREFETCH_BYTES * share // 7)
        self.turn()

    @rule(prefetch=st.booleans())
    def another_policy_plans(self, prefetch: bool) -> None:
        self.store.plan_by(open_store_everywhere(None))
        policy: PrefetchPolicy = self.policy if prefetch else open_load_from_first(None)
        self.prefetch.plan_by(policy)

    @rule()
    def another_policy_evicts(self) -> None:
        if not self.eviction.changing:
            self.eviction.change_policy(LeastRecentlyUsed(self.kernels))
            self.eviction.cycle()

    @rule()
    def the_policy_that_took_over_knows_what_is_there(self) -> None:
        while self.eviction.changing:
            self.eviction.cycle()
        self.eviction._notify(self.cache.take_access_log())
        known = self.eviction.guarded.policy.victims(EvictionDemand(1 << 40, {}), lambda slot: True)
        there = [
            slot
            for slot, _ in self.cache.contents.insert_facts(range(self.cache.contents.slot_numbers), RequestFacts())
        ]
        assert sorted(known) == there

    # --- the requirements

    @invariant()
    def a_drained_adapter_is_given_no_new_stores(self) -> None:
        for client, (change, admitted) in list(self.closed.items()):
            if not change.wait(0):
                continue
            queue = next(queue for queue in self.store._queues if queue.client is client)
            now = queue.counters.now.admitted
            if admitted is None:
                self.closed[client] = (change, now)
            assert admitted in (None, now), "a store to an adapter that is being drained"

    @invariant()
    def a_removed_adapter_is_asked_for_nothing(self) -> None:
        for client, (first, second) in self.leaving.items():
            if first.wait(0) and second.wait(0):
                self.silent.setdefault(client, self.adapter_of(client).asked.total())
        for client, asked in self.silent.items():
            assert self.adapter_of(client).asked.total() == asked

    @invariant()
    def the_backlog_is_what_may_still_get_there(self) -> None:
        waiting = any(queue.counters.now.waiting for queue in self.store._queues)
        if not (waiting or len(self.store._inbox) or any(client.jobs.unanswered for client in self.clients)):
            assert self.store.backlog.size_bytes == 0

    @invariant()
    def nothing_is_bigger_than_l1(self) -> None:
        assert self.cache.contents.state_counts().total <= SLOTS

    def teardown(self) -> None:
        self.prefetch.bound(l1_max_bytes=PREFETCH_BYTES)
        self.removed_adapters_are_abandoned()
        for client in self.clients:
            if client not in self.serving:
                self.adapter_of(client).pins.clear()  # what it found since has gone with it
        super().teardown()


TestReconfigure = ReconfigureMachine.TestCase
TestReconfigure.settings = settings(
    max_examples=-(-STEPS // (2 * STEPS_PER_RUN)), stateful_step_count=STEPS_PER_RUN, deadline=None
)
