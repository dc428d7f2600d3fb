"""A store controller over adapters that answer on cue."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core.builtin.policies import StoreEverywhere
from lmcache_core.contracts.counts import StoreCounts
from lmcache_core.contracts.policies import StorePolicy
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.store import StoreController
from lmcache_core.controllers.store_queue import StoreLimits
from lmcache_core.controllers.store_units import Batch
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, check
from lmcache_core.model.results import Outcome
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_clock import FakeClock
from lmcache_devkit.l1_audit import audit

PAYLOAD = 4096
OBJECT = PAYLOAD + HEADER_BYTES
SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
TIMEOUT = 30.0


def chunks(count: int, prompt: int = 1) -> list[bytes]:
    return [bytes([prompt]) * 31 + bytes([chunk]) for chunk in range(count)]


class StoreHarness:
    """`turn` is one round of clients and controller; nothing runs by itself."""

    def __init__(self, limits: StoreLimits, adapters: int = 1, policy: StorePolicy | None = None) -> None:
        self.clock, self.events = FakeClock(), EventRecorder()
        self.arena = anonymous_arena(OBJECT * 256)
        self.cache = L1Cache(self.arena, 4096)
        self.adapters = [CueAdapter() for _ in range(adapters)]
        self.clients = [
            AdapterClient(number, f"cue-{number}", adapter, adapter.capabilities, self.clock, TIMEOUT)
            for number, adapter in enumerate(self.adapters)
        ]
        self.store = StoreController(
            self.cache, self.clients, policy or StoreEverywhere(), limits, self.clock, self.events
        )

    def put(self, hashes: Sequence[bytes], first_chunk: int = 0) -> int:
        """Publish those of these that L1 has not, and offer them.  Returns how many the controller took in."""
        record = self.cache.intern(SPACE, PAYLOAD)
        write, indexes = self.cache.reserve(Owner(OwnerKind.WORKER, 1), record, hashes, None)
        slots = tuple(write.slots)
        if not slots:
            self.cache.leases.end(write)
            return 0
        for slot, index in zip(slots, indexes, strict=True):
            self.cache.buffer(slot).view[HEADER_BYTES:] = hashes[index] * (PAYLOAD // 32)
        onward = self.store.admit(len(slots), OBJECT)
        assert self.cache.publish(write, slots, [onward] if onward else [], first_chunk)
        if onward:
            self.store.offer(Batch(onward, slots, range(first_chunk, first_chunk + len(slots)), len(slots) * OBJECT))
        return len(slots) if onward else 0

    def turn(self) -> None:
        for client in self.clients:
            client.deliver()
        self.store.cycle()

    def settle(self, number: int = 0, outcome: Outcome = Outcome.DONE) -> None:
        """This adapter answers everything that it is or will be given."""
        adapter = self.adapters[number]
        self.turn()
        while adapter.waiting:
            if outcome is Outcome.DONE:
                adapter.finish(adapter.waiting[0])
            else:
                adapter.fail(adapter.waiting[0], outcome)
            self.turn()

    def snapshot(self, number: int = 0) -> StoreCounts:
        account = self.store._queues[number].counters.now
        assert account.adds_up, account
        return account

    def stored(self, hashes: Sequence[bytes], number: int = 0) -> list[int]:
        """Indexes of those that this adapter has, whole, sealed and under their key."""
        found = []
        for index, chunk in enumerate(hashes):
            key = ObjectKey(SPACE, chunk)
            data = self.adapters[number].objects.get(key.object_id)
            if data is not None:
                checked = check(data, key)
                assert checked.outcome is Outcome.DONE, checked
                assert data[HEADER_BYTES:] == chunk * (PAYLOAD // 32)
                found.append(index)
        return found

    def close(self) -> None:
        audit(self.cache)
        assert self.cache.contents.state_counts().is_balanced
        for adapter in self.adapters:
            adapter.close(0)
        self.arena.close()
