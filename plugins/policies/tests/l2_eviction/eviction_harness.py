"""An adapter behind its client, and the eviction of what it holds, turned by hand."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.contracts.l2_eviction import L2EvictionContext
from lmcache_core.contracts.policies import EvictionPolicy
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock
from lmcache_policies.l2_eviction.watermark import CHECK_SECONDS, WatermarkEviction, WatermarkSettings

SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
OBJECT = 4096
CAPACITY = 100 * OBJECT


def key(number: int) -> ObjectKey:
    return ObjectKey(SPACE, number.to_bytes(32, "big"))


class Backend(CueAdapter):
    """With a capacity, and a listing in pages."""

    capacity: int | None = CAPACITY
    lists: Sequence[KeyPage | Exception] = ()

    def usage(self) -> Usage | None:
        used = super().usage()
        return used._replace(capacity_bytes=self.capacity) if used else None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        page = self.lists[int(cursor or 0)]
        if isinstance(page, Exception):
            raise page
        return page


class EvictionHarness:
    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.clock, self.events, self.adapter = FakeClock(), EventRecorder(), Backend()
        self.client = AdapterClient(0, "cue", self.adapter, self.adapter.capabilities, self.clock, 30.0)
        seat = GuardedPolicy("eviction policy of adapter cue", policy or open_lru(None), self.clock)
        self.eviction = WatermarkEviction(
            WatermarkSettings(eviction_policy="LRU"),
            L2EvictionContext(self.client, seat, self.clock, self.events),
        )
        self.client.watch(self.eviction)
        self.inbox = Inbox[object]()
        self.memory = BorrowedMemory(1 << 20)

    def buffer(self, size: int = OBJECT) -> BorrowedBuffer:
        return self.memory.lend(size)

    def turn(self) -> None:
        self.client.deliver()
        self.eviction.cycle()

    def store(self, *numbers: int, size: int = OBJECT) -> None:
        self.memory = BorrowedMemory((size + 4096) * len(numbers))
        self.client.submit_store([StoreItem(key(number), self.buffer(size)) for number in numbers], self.inbox, None)
        self.adapter.finish(self.adapter.waiting[-1])
        self.turn()

    def look(self, *numbers: int) -> None:
        self.client.submit_lookup([key(number) for number in numbers], self.inbox, None)
        self.adapter.finish(self.adapter.waiting[-1])
        self.turn()

    def deletes(self) -> list[int]:
        """What is being deleted now."""
        jobs = [job for job in self.adapter.waiting if job.verb == "delete"]
        assert len(jobs) <= 1, "one slice at a time"
        return [int.from_bytes(name.chunk_hash, "big") for job in jobs for name in job.keys]

    def delete(self, outcome: Outcome = Outcome.DONE) -> list[int]:
        """Answer the deletion that waits."""
        numbers = self.deletes()
        job = next(job for job in self.adapter.waiting if job.verb == "delete")
        self.adapter.finish(job) if outcome is Outcome.DONE else self.adapter.fail(job, outcome)
        self.turn()
        return numbers

    def there(self) -> set[int]:
        names = {key(number).object_id: number for number in range(300)}
        return {names[name] for name in self.adapter.objects}

    def later(self, seconds: float = CHECK_SECONDS) -> None:
        self.clock.advance(seconds)
        self.turn()
