"""Prompts that were read, by tenant, within a bound: found again by their bytes alone.

The prompts of a tenant are a radix tree over the msgpack integers as they came.  Prompts share what they have in common; a
path from the root is the beginning of one that was decoded before, so that every byte of it belongs to a token id.
"""

from __future__ import annotations

import heapq
import math
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lmcache_client.engine_key import NOTHING_KNOWN, KnownPrefix, TokenSequence
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.request_module import ReadTokens

NODE_BYTES: Final = 500
CHUNK_BYTES: Final = 120
"""About what a node and a hash take, with the objects around them."""

PATH_MAX: Final = 384
"""Stretches that one prompt may consist of; what lies behind them is not remembered.  It takes as many prompts that part
from it at different places, and keeps looking one up below half a millisecond."""


class _Node(msgspec.Struct, gc=False, eq=False):
    """A stretch of a prompt.  `hashes` and `ends` are those of the chunks that end in it, ends from the prompt's start.

    Made of what the garbage collector does not walk, because it would take 0.2 s for all that the memory can hold.  So a
    node that is forgotten must be taken out of its chain, and out of the children of the one above it."""

    start: int
    segment: bytes
    hashes: tuple[bytes, ...]
    ends: tuple[int, ...]
    children: dict[int, _Node] = {}
    above: _Node | None = None
    older: _Node | None = None
    newer: _Node | None = None
    used: float = 0.0

    @property
    def size_bytes(self) -> int:
        return NODE_BYTES + len(self.segment) + CHUNK_BYTES * len(self.hashes)


class PromptTree:
    """Not synchronised.  `size_bytes` is about what it takes."""

    def __init__(self) -> None:
        self._root = _Node(0, b"", (), ())
        # All nodes but the root in a chain, as a dictionary of them would block for 80 ms when it grows.  Each is
        # newer than all nodes below it, so that the oldest one has none below it.
        self._oldest: _Node | None = None
        self._newest: _Node | None = None
        self._stretches = 0
        self.size_bytes = NODE_BYTES

    def __len__(self) -> int:
        """Stretches of prompts that are remembered."""
        return self._stretches

    def find(self, encoded: memoryview, chunks: int, now: float) -> KnownPrefix:
        """What is known of the integers that `encoded` begins with, of at most `chunks` chunks."""
        path, same = self._descend(encoded)
        hashes: list[bytes] = []
        end = 0
        for node in path:
            known = node.hashes
            if len(known) > chunks - len(hashes) or same < node.start + len(node.segment):
                known = known[: min(bisect_right(node.ends, same), chunks - len(hashes))]
            if known:
                hashes += known
                end = node.ends[len(known) - 1]
        self._touch(path, now)
        return KnownPrefix(hashes, end, same) if path else NOTHING_KNOWN

    def add(self, encoded: memoryview, hashes: Sequence[bytes], ends: Sequence[int], now: float) -> None:
        """Remember a prompt whose integers were all read.  `ends` are those of the last ones of its `hashes`."""
        path, same = self._descend(encoded)
        if len(path) >= PATH_MAX:
            return
        node = path[-1] if path else self._root
        if path and same < node.start + len(node.segment):
            if same == len(encoded):
                return
            node = path[-1] = self._split(node, same - node.start)
        known = sum(len(node.hashes) for node in path)
        first = known - (len(hashes) - len(ends))
        if same < len(encoded) and first >= 0:
            leaf = _Node(same, bytes(encoded[same:]), tuple(hashes[known:]), tuple(ends[first:]), above=node)
            node.children[leaf.segment[0]] = leaf
            self._append(leaf)
            self.size_bytes += leaf.size_bytes
            path.append(leaf)
            self._join(path)
        self._touch(path, now)

    def forget(self, at_most: int, since: float = math.inf) -> bool:
        """Forget the longest unused stretches that no other ones follow, if they were not used since then.  True when
        there may be more of them."""
        for _ in range(at_most):
            node = self._oldest
            if node is None or node.used >= since:
                return False
            if node.above is not None:
                del node.above.children[node.segment[0]]
            self._unlink(node)
            self.size_bytes -= node.size_bytes
        return True

    def _descend(self, encoded: memoryview) -> tuple[list[_Node], int]:
        """The nodes, the last one perhaps in part, that spell the longest known beginning; and its length."""
        path: list[_Node] = []
        at, end, children = 0, len(encoded), self._root.children
        while at < end and len(path) < PATH_MAX and (node := children.get(encoded[at])) is not None:
            segment, stretch = node.segment, encoded[at : at + len(node.segment)]
            same = len(stretch) if segment.startswith(stretch) else _common(segment, stretch)
            at += same
            path.append(node)
            if same < len(node.segment):
                break
            children = node.children
        return path, at

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two.  Returns the upper one."""
        chunks = bisect_right(node.ends, node.start + at)
        above = node.above or self._root
        # Everything that takes memory comes first: if that fails, the tree is as it was.
        upper = _Node(node.start, node.segment[:at], node.hashes[:chunks], node.ends[:chunks], above=above)
        lower = node.start + at, node.segment[at:], node.hashes[chunks:], node.ends[chunks:]
        upper.children[node.segment[at]] = node
        node.start, node.segment, node.hashes, node.ends = lower
        node.above = upper
        above.children[upper.segment[0]] = upper
        self._append(upper)
        self.size_bytes += NODE_BYTES
        return upper

    def _join(self, path: list[_Node]) -> None:
        """Join the last node with those before it that only it follows, unless they are much longer: a prompt that grows
        often stays a short path, and its bytes are copied a few times at most."""
        while len(path) > 1 and len(path[-2].children) == 1 and 2 * len(path[-1].segment) >= len(path[-2].segment):
            node, last = path[-2:]
            joined = node.segment + last.segment, node.hashes + last.hashes, node.ends + last.ends
            node.segment, node.hashes, node.ends = joined
            node.children = last.children
            path.pop()
            self._unlink(last)
            self.size_bytes -= NODE_BYTES

    def _touch(self, path: Sequence[_Node], now: float) -> None:
        for node in reversed(path):
            node.used = now
            if node is not self._newest:
                self._unlink(node)
                self._append(node)

    def _append(self, node: _Node) -> None:
        """It is the newest one now, and was in no chain."""
        node.older = newest = self._newest
        if newest is None:
            self._oldest = node
        else:
            newest.newer = node
        self._newest = node
        self._stretches += 1

    def _unlink(self, node: _Node) -> None:
        older, newer = node.older, node.newer
        if older is None:
            self._oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self._newest = older
        else:
            newer.older = older
        node.older = node.newer = None
        self._stretches -= 1


def _common(segment: bytes, other: memoryview) -> int:
    """Length of the common beginning.  `other` is not longer than `segment`."""
    # bytes.startswith compares as fast as memory is read; comparing memoryviews takes a hundred times as long.
    if segment.startswith(other):
        return len(other)
    same, differs = 0, len(other)
    while differs - same > 1:
        middle = (same + differs) // 2
        if segment.startswith(other[same:middle], same):
            same = middle
        else:
            differs = middle
    return same


MEMORY_BYTES_MAX: Final = 128 << 20
"""Tokens and hashes remembered for all tenants together."""
TENANTS_MAX: Final = 4096
"""Tenants of which something is remembered; beyond it the longest unused is forgotten, slice by slice."""
FORGOTTEN_AT_ONCE: Final = 256
"""Stretches of prompts; half a millisecond, in which no other thread may look."""
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
        self.size_bytes = 0
        """About what all of it takes."""
        self._next_expiry = clock.monotonic()
        self._listeners: tuple[Callable[[ReadTokens], None], ...] = ()

    def __len__(self) -> int:
        """Stretches of prompts; prompts with a common beginning share that one."""
        with self._lock:
            return sum(map(len, self._trees.values()))

    @property
    def tenants(self) -> int:
        """Of which something is remembered."""
        return len(self._trees)

    def status(self) -> dict[str, object]:
        with self._lock:
            return {"tenants": len(self._trees), "bytes": self.size_bytes, "bytes_max": self._bytes_max}

    def find(self, cache_salt: str, encoded: memoryview, chunks: int) -> KnownPrefix:
        """What is known of this tenant's prompt whose integers `encoded` begins with, of at most `chunks` chunks.
        What follows the integers does not matter."""
        with self._lock:
            tree = self._trees.get(cache_salt)
            if tree is None:
                return NOTHING_KNOWN
            self._trees.move_to_end(cache_salt)
            return tree.find(encoded, chunks, self._clock.monotonic())

    def listen(self, function: Callable[[ReadTokens], None]) -> Callable[[], None]:
        """As `ChunkHasher.listen`."""
        with self._lock:
            self._listeners = (*self._listeners, function)
            trees, self._trees, self.size_bytes = self._trees, OrderedDict(), 0
        for tree in trees.values():  # out of reach, so without the lock
            while tree.forget(FORGOTTEN_AT_ONCE):
                pass

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not function)

        return end

    def remember(self, tokens: TokenSequence, hashes: Sequence[bytes], ends: Sequence[int], begin: int) -> None:
        """Add a prompt of which every token was read.  `hashes` are those of all its whole chunks; `ends`, of the last
        ones of these, the offsets in `tokens.encoded` behind them; `begin`, where the first of those begins."""
        if self._listeners:
            chunks = [tokens.encoded[start:end] for start, end in zip((begin, *ends), ends, strict=False)]
            for listener in self._listeners:
                listener(ReadTokens(tokens.cache_salt, hashes, chunks))
        if 2 * (len(tokens.encoded) + CHUNK_BYTES * len(hashes)) > self._bytes_max:
            return
        with self._lock:
            tree = self._trees.get(tokens.cache_salt)
            if tree is None:
                tree = self._trees[tokens.cache_salt] = PromptTree()
                self.size_bytes += tree.size_bytes
            before = tree.size_bytes
            tree.add(tokens.encoded, hashes, ends, self._clock.monotonic())
            self.size_bytes += tree.size_bytes - before
            if len(self._trees) > TENANTS_MAX:
                self._forget(next(iter(self._trees)), FORGOTTEN_AT_ONCE)
            if self.size_bytes > self._bytes_max:
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
        while largest and (self.size_bytes > self._bytes_max or (self.size_bytes > goal and spare > 0)):
            _, salt = largest[0]
            self._forget(salt, 1)
            spare -= 1
            tree = self._trees.get(salt)
            if tree is None:
                heapq.heappop(largest)
            else:
                heapq.heapreplace(largest, (-tree.size_bytes, salt))

    def _forget(self, salt: str, at_most: int, since: float = math.inf) -> bool:
        """Forget up to this many stretches of this tenant.  True when there may be more to forget."""
        tree = self._trees.get(salt)
        if tree is None:
            return False
        self.size_bytes -= tree.size_bytes
        more = tree.forget(at_most, since)
        if len(tree):
            self.size_bytes += tree.size_bytes
        else:
            del self._trees[salt]
        return more
