"""The prompts of one tenant: what was read of them, found again by their bytes alone.

A radix tree over the msgpack integers as they came.  Prompts share what they have in common; a path from the root is the
beginning of one that was decoded before, so that every byte of it belongs to a token id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from lmcache_core.wire.tokens import NOTHING_KNOWN, KnownPrefix

NODE_BYTES: Final = 500
CHUNK_BYTES: Final = 120
"""About what a node and a hash take, with the objects around them."""


PATH_MAX: Final = 512
"""Stretches that one prompt may consist of; what lies behind them is not remembered.  It takes as many prompts that part
from it at different places, and keeps looking one up below half a millisecond."""


class _Node(msgspec.Struct, gc=False, eq=False):
    """A stretch of a prompt.  `hashes` and `ends` are those of the chunks that end in it, ends from the prompt's start.

    Made of what the garbage collector does not walk, because it would take 0.2 s for all that the memory can hold; nodes
    know those below them only, so that nothing goes round in circles."""

    start: int
    segment: bytes
    hashes: tuple[bytes, ...]
    ends: tuple[int, ...]
    children: dict[int, _Node] = {}
    used: float = 0.0

    @property
    def size_bytes(self) -> int:
        return NODE_BYTES + len(self.segment) + CHUNK_BYTES * len(self.hashes)


class PromptTree:
    """Not synchronised.  `size_bytes` is about what it takes."""

    def __init__(self) -> None:
        self._root = _Node(0, b"", (), ())
        # Every node and the one above it, longest unused first.  A node stands behind all nodes below it, so that the
        # first one has none below it.
        self._order: OrderedDict[_Node, _Node] = OrderedDict()
        self.size_bytes = NODE_BYTES

    def __len__(self) -> int:
        """Stretches of prompts that are remembered."""
        return len(self._order)

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
            leaf = _Node(same, bytes(encoded[same:]), tuple(hashes[known:]), tuple(ends[first:]))
            node.children[leaf.segment[0]] = leaf
            self._order[leaf] = node
            self.size_bytes += leaf.size_bytes
            path.append(leaf)
            self._join(path)
        self._touch(path, now)

    def forget_one(self) -> None:
        """Forget the longest unused stretch that no other one follows."""
        node, above = self._order.popitem(last=False)
        self.size_bytes -= node.size_bytes
        del above.children[node.segment[0]]

    def forget_unused(self, since: float) -> None:
        """Forget what was not used since then."""
        while self._order and next(iter(self._order)).used < since:
            self.forget_one()

    def _descend(self, encoded: memoryview) -> tuple[list[_Node], int]:
        """The nodes, the last one perhaps in part, that spell the longest known beginning; and its length."""
        path: list[_Node] = []
        at, end, children = 0, len(encoded), self._root.children
        while at < end and len(path) < PATH_MAX and (node := children.get(encoded[at])) is not None:
            same = _common(node.segment, encoded[at : at + len(node.segment)])
            at += same
            path.append(node)
            if same < len(node.segment):
                break
            children = node.children
        return path, at

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two.  Returns the upper one."""
        chunks = bisect_right(node.ends, node.start + at)
        upper = _Node(node.start, node.segment[:at], node.hashes[:chunks], node.ends[:chunks])
        above = self._order[node]
        above.children[upper.segment[0]] = upper
        self._order[upper] = above
        self._order[node] = upper
        node.start, node.segment = node.start + at, node.segment[at:]
        node.hashes, node.ends = node.hashes[chunks:], node.ends[chunks:]
        upper.children[node.segment[0]] = node
        self.size_bytes += NODE_BYTES
        return upper

    def _join(self, path: list[_Node]) -> None:
        """Join the last node with those before it that only it follows, unless they are much longer: a prompt that grows
        often stays a short path, and its bytes are copied a few times at most."""
        while len(path) > 1 and len(path[-2].children) == 1 and 2 * len(path[-1].segment) >= len(path[-2].segment):
            last = path.pop()
            node = path[-1]
            node.segment += last.segment
            node.hashes += last.hashes
            node.ends += last.ends
            node.children = {}
            del self._order[last]
            self.size_bytes -= NODE_BYTES

    def _touch(self, path: Sequence[_Node], now: float) -> None:
        for node in reversed(path):
            node.used = now
            self._order.move_to_end(node)


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
