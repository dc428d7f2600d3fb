"""What L1 costs beyond the data: memory per object, time per hit, and how long eviction keeps a request waiting.

    .venv/bin/python -m benchmarks.l1_index [--keys 1000000] [--native off|on]

Runs in this process and prints one JSON line.  Slots are tiny and their memory is never touched, so that what the
process grows by is what the objects cost beyond their bytes: index, slot table, holds, and the LRU policy's order.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import psutil

from benchmarks.rows.site import quantile
from lmcache_core.app.commands.server import settle, take_turns
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.policies import AccessFacts
from lmcache_core.controllers.eviction import EvictionController
from lmcache_core.kernels.choice import Kernels, NativeMode, choose_kernels
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.cache import L1Cache
from lmcache_core.l1.leases import Owner, OwnerKind
from lmcache_core.model.keys import HashChain, KeySpace
from lmcache_core.model.object_header import HEADER_BYTES

BATCH: Final = 32
"""Chunks of one request: 8,192 tokens."""
FILL_BATCH: Final = 256
BATCHES_PER_CYCLE: Final = 64
"""The eviction controller reads what it has to tell its policy about as often as this."""
HIT_BATCHES: Final = 6_000
ROUNDS: Final = 5
EVICTED_RATIO: Final = 0.2
IDLE_SECONDS: Final = 1.0
ALIGN_BYTES: Final = 4096
WORKER: Final = Owner(OwnerKind.WORKER, 1)


class Waits(NamedTuple):
    """What requests met while something else went on."""

    seconds: list[float]
    """How long each took, longest last."""
    behind_cpu_seconds: float
    """The most CPU time that the other thread got while one of them waited, which a busy machine does not change."""
    took_seconds: float


class NoSubscriber:
    """Without subscribers."""

    def wants(self, kind: type[Event]) -> bool:
        return False

    def publish(self, event: Event) -> None:
        pass


def hashes(first: int, count: int) -> list[bytes]:
    return [blake2b(number.to_bytes(8, "little"), digest_size=32).digest() for number in range(first, first + count)]


class L1Index:
    """A cache of `keys` objects with its eviction, put together as `app.build` does."""

    def __init__(self, keys: int, kernels: Kernels) -> None:
        self.keys = keys
        slot_bytes = HEADER_BYTES + ALIGN_BYTES
        self._arena = anonymous_arena(int(keys * 1.25) * slot_bytes)
        self._cache = L1Cache(self._arena, ALIGN_BYTES, kernels)
        policy = LeastRecentlyUsed(kernels)
        self._record = self._cache.intern(
            KeySpace("meta-llama/Llama-3.1-8B", 1, 0, "", 256, HashChain.BLAKE3, bytes(16)), ALIGN_BYTES
        )
        events = NoSubscriber()
        self._tell = EvictionController(self._cache, policy, 1.0, EVICTED_RATIO, events)
        self._evict = EvictionController(self._cache, policy, 0.01, EVICTED_RATIO, events)

    def fill(self, first: int, count: int) -> float:
        """Store this number of new objects.  Returns the CPU seconds that the cache took for it."""
        seconds = 0.0
        for at in range(first, first + count, FILL_BATCH):
            names = hashes(at, min(FILL_BATCH, first + count - at))
            start_time = time.thread_time()
            lease, indexes = self._cache.reserve(WORKER, self._record, names, None)
            if len(indexes) != len(names) or not self._cache.publish(lease, list(lease.slots)):
                raise SystemExit(f"only {len(indexes)} of {len(names)} objects found room")
            if at // FILL_BATCH % BATCHES_PER_CYCLE == 0:
                self._tell.cycle()
            seconds += time.thread_time() - start_time
        self._tell.cycle()
        return seconds

    def hit(self, names: list[bytes], number: int) -> int:
        """What one request does to chunks that are there.  Returns how many were."""
        lease = self._cache.leases.open(Owner(OwnerKind.LOOKUP, number), None)
        slots = [slot for slot in self._cache.leases.acquire(lease, self._record, names) if slot >= 0]
        self._cache.log_access(slots, AccessFacts())
        self._cache.leases.end(lease)
        return len(slots)

    def hit_seconds(self, batches: list[list[bytes]]) -> float:
        """CPU seconds per object, what the policy does about it included."""
        start_time, found = time.thread_time(), 0
        for number, names in enumerate(batches):
            found += self.hit(names, number)
            if number % BATCHES_PER_CYCLE == 0:
                self._tell.cycle()
        self._tell.cycle()
        taken = time.thread_time() - start_time
        if found != sum(map(len, batches)):
            raise SystemExit(f"{found} objects of {sum(map(len, batches))} were found")
        return taken / found

    def waits(self, batches: list[list[bytes]], evicting: bool) -> Waits:
        """Requests without pause beside one eviction, or beside nothing for a while."""
        done = threading.Event()

        def beside() -> None:
            if evicting:
                self._evict.cycle()
            else:
                time.sleep(IDLE_SECONDS)
            done.set()
            finish.wait()  # a thread that has ended has no clock any more

        finish, thread = threading.Event(), threading.Thread(target=beside)
        wall, other, number = [], [], 0
        thread.start()
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        start_time = time.perf_counter()
        while not done.is_set():
            names = batches[number % len(batches)]
            at, used = time.perf_counter(), time.clock_gettime(clock)
            self.hit(names, number)
            wall.append(time.perf_counter() - at)
            other.append(time.clock_gettime(clock) - used)
            number += 1
        took = time.perf_counter() - start_time
        finish.set()
        thread.join()
        return Waits(sorted(wall), max(other), took)

    @property
    def objects(self) -> int:
        return self._cache.contents.state_counts().cached


def measure(keys: int, native: NativeMode, hit_batches: int = HIT_BATCHES) -> dict[str, float]:
    process = psutil.Process()
    index = L1Index(keys, choose_kernels(native))
    gc.collect()
    before = process.memory_info().rss
    fill = index.fill(0, keys)
    gc.collect()
    grown = process.memory_info().rss - before
    rng = np.random.default_rng(1)
    places = rng.integers(0, keys - BATCH, hit_batches).tolist()
    batches = [hashes(place, BATCH) for place in places]
    hit = sorted(index.hit_seconds(batches[number::ROUNDS]) for number in range(ROUNDS))[ROUNDS // 2]
    settle()  # as `lmcache server` does, and what the batches are made of is not a server's
    alone = index.waits(batches, evicting=False)
    beside = index.waits(batches, evicting=True)
    gone = keys - index.objects
    if not 0.9 * EVICTED_RATIO < gone / keys < 1.1 * EVICTED_RATIO:
        raise SystemExit(f"{gone} of {keys} objects were evicted, not a fifth")
    return {
        "l1_bytes_per_key": grown / keys,
        "l1_fill_us": fill / keys * 1e6,
        "l1_hit_us": hit * 1e6,
        "l1_stall_alone_ms": alone.seconds[-1] * 1e3,
        "l1_stall_p999_ms": quantile(beside.seconds, 0.999) * 1e3,
        "l1_stall_cpu_ms": beside.behind_cpu_seconds * 1e3,
        "l1_stall_ms": beside.seconds[-1] * 1e3,
        "l1_evict_us": beside.took_seconds / gone * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--native", choices=("on", "off"), default="off")
    args = parser.parse_args()
    take_turns()  # as `lmcache server` does
    print(json.dumps(measure(args.keys, args.native)))


if __name__ == "__main__":
    main()
