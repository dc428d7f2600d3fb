"""Prompts of all tenants, remembered within a bound."""

from __future__ import annotations

import heapq
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from lmcache_client.tokens import NOTHING_KNOWN, KnownPrefix, TokenSequence
from lmcache_core.contracts.clock import Clock
from lmcache_core.server.prompt_tree import CHUNK_BYTES, PromptTree

MEMORY_BYTES_MAX: Final = 128 << 20
"""Tokens and hashes remembered for all tenants together."""
TENANTS_MAX: Final = 4096
"""Tenants of which something is remembered; beyond it the longest unused is forgotten, slice by slice."""
FORGOTTEN_AT_ONCE: Final = 256
"""Stretches of prompts; half a millisecond, in which nobody else may look."""
_EXPIRIES_PER_TTL: Final = 32


class PromptMemory:
    """Prompts whose tokens were read, by tenant: what one tenant sent makes nothing faster for another one.

    Beyond the bound the longest unused prompts are forgotten, of the tenant that takes most; so are prompts that were
    not seen for the time to live.  Safe from any thread; holds the GIL for 25 us per MB that is compared."""

    def __init__(self, ttl_seconds: float, clock: Clock, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._ttl = ttl_seconds
        self._clock = clock
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._trees: OrderedDict[str, PromptTree] = OrderedDict()
        """By tenant, longest unused first."""
        self._bytes = 0
        self._next_expiry = clock.monotonic()

    def __len__(self) -> int:
        """Stretches of prompts; prompts with a common beginning share that one."""
        with self._lock:
            return sum(map(len, self._trees.values()))

    @property
    def size_bytes(self) -> int:
        """About what all of it takes."""
        return self._bytes

    @property
    def tenants(self) -> int:
        """Of which something is remembered."""
        return len(self._trees)

    def status(self) -> dict[str, object]:
        with self._lock:
            return {"tenants": len(self._trees), "bytes": self._bytes, "bytes_max": self._bytes_max}

    def find(self, cache_salt: str, encoded: memoryview, chunks: int) -> KnownPrefix:
        """What is known of this tenant's prompt whose integers `encoded` begins with, of at most `chunks` chunks.
        What stands behind the integers does not matter."""
        with self._lock:
            tree = self._trees.get(cache_salt)
            if tree is None:
                return NOTHING_KNOWN
            self._trees.move_to_end(cache_salt)
            return tree.find(encoded, chunks, self._clock.monotonic())

    def remember(self, tokens: TokenSequence, hashes: Sequence[bytes], ends: Sequence[int]) -> None:
        """Add a prompt of which every token was read.  `hashes` are those of all its whole chunks; `ends`, of the last
        ones of these, the offsets in `tokens.encoded` behind them."""
        if 2 * (len(tokens.encoded) + CHUNK_BYTES * len(hashes)) > self._bytes_max:
            return
        with self._lock:
            tree = self._trees.get(tokens.cache_salt)
            if tree is None:
                tree = self._trees[tokens.cache_salt] = PromptTree()
                self._bytes += tree.size_bytes
            before = tree.size_bytes
            tree.add(tokens.encoded, hashes, ends, self._clock.monotonic())
            self._bytes += tree.size_bytes - before
            if len(self._trees) > TENANTS_MAX:
                self._forget(next(iter(self._trees)), FORGOTTEN_AT_ONCE)
            if self._bytes > self._bytes_max:
                self._make_room()

    def expire(self) -> None:
        """Forget prompts that were not seen for the time to live.  To be called now and then; most calls do nothing."""
        now = self._clock.monotonic()
        if now < self._next_expiry:
            return
        self._next_expiry = now + self._ttl / _EXPIRIES_PER_TTL
        since = now - self._ttl
        with self._lock:
            salts = list(self._trees)
        for salt in salts:
            more = True
            while more:
                with self._lock:
                    more = self._forget(salt, FORGOTTEN_AT_ONCE, since)

    def _make_room(self) -> None:
        """Some more than is needed, so that looking for the largest tenant is rare."""
        goal, spare = self._bytes_max - self._bytes_max // 64, FORGOTTEN_AT_ONCE
        largest = [(-tree.size_bytes, salt) for salt, tree in self._trees.items()]
        heapq.heapify(largest)
        while largest and (self._bytes > self._bytes_max or (self._bytes > goal and spare > 0)):
            _, salt = largest[0]
            self._forget(salt, 1)
            spare -= 1
            tree = self._trees.get(salt)
            if tree is None:
                heapq.heappop(largest)
            else:
                heapq.heapreplace(largest, (-tree.size_bytes, salt))

    def _forget(self, salt: str, at_most: int, since: float = math.inf) -> bool:
        """Up to so many stretches of this tenant.  True when there may be more to forget."""
        tree = self._trees.get(salt)
        if tree is None:
            return False
        self._bytes -= tree.size_bytes
        more = tree.forget(at_most, since)
        if len(tree):
            self._bytes += tree.size_bytes
        else:
            del self._trees[salt]
        return more
