"""vLLM's blocks in miniature: who uses which, what a window leaves behind, and prefixes that requests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from engines.vllm.tests.vllm_steps import Request
from lmcache_vllm.placement import CacheGroup


class BlockPool:
    def __init__(
        self, groups: Sequence[CacheGroup], blocks: int, *, shares_prefixes: bool, reuses_at_once: bool
    ) -> None:
        """`reuses_at_once`: vLLM gives out those that are free for longest; a nearly full one has no others."""
        self._groups = tuple(groups)
        self._shares_prefixes = shares_prefixes and len(self._groups) == 1
        self._reuses_at_once = reuses_at_once
        self._free = list(range(1, blocks))
        self.users: Counter[int] = Counter()
        self._cached: dict[tuple[Any, ...], int] = {}

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self._free.append(block)

    def allocate(self, request: Request, tokens: int) -> bool:
        """Blocks for that many tokens; a group with a window frees those that it does not need any more."""
        wanted = [-(-tokens // group.block_tokens) for group in self._groups]
        tables = request.tables or [[] for _ in self._groups]
        missing = sum(max(0, count - len(table)) for count, table in zip(wanted, tables, strict=True))
        if missing > len(self._free):
            return False
        request.tables = tables
        self.free_skipped(request, request.computed)
        for count, table, group in zip(wanted, tables, self._groups, strict=True):
            needless = self._skipped(group, request.computed)
            while len(table) < count:
                if len(table) < needless:
                    table.append(0)
                    continue
                block = self._free.pop(-1 if self._reuses_at_once else 0)
                self.users[block] += 1
                self._cached = {name: kept for name, kept in self._cached.items() if kept != block}
                table.append(block)
        return True

    def free_skipped(self, request: Request, computed: int) -> None:
        """Each step, and at the end before the connector is asked."""
        for table, group in zip(request.tables, self._groups, strict=False):  # without blocks there are no tables
            for index in range(min(self._skipped(group, computed), len(table))):
                if table[index]:
                    self.release([table[index]])
                    table[index] = 0

    @staticmethod
    def _skipped(group: CacheGroup, computed: int) -> int:
        """Blocks that a window has left behind."""
        return max(0, computed - group.window_tokens + 1) // group.block_tokens if group.window_tokens >= 0 else 0

    def shared_prefix(self, request: Request) -> list[int]:
        found: list[int] = []
        size = self._groups[0].block_tokens
        while self._shares_prefixes and (len(found) + 1) * size < len(request.tokens):
            block = self._cached.get(self._prefix_name(request, (len(found) + 1) * size))
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self._free:
                self._free.remove(block)
            self.users[block] += 1

    def _prefix_name(self, request: Request, end: int) -> tuple[Any, ...]:
        return (request.facts.cache_salt, *request.truth[:end])

    def cache_blocks(self, request: Request, computed: int) -> None:
        if self._shares_prefixes:
            size = self._groups[0].block_tokens
            for index in range(min(computed, len(request.tokens)) // size):
                self._cached.setdefault(self._prefix_name(request, (index + 1) * size), request.tables[0][index])
