"""Stores that workers have received and not finished."""

from __future__ import annotations

from typing import NamedTuple

from lmcache_vllm.metadata import WorkerReport


class _Store(NamedTuple):
    request_id: str
    blocks: frozenset[int]
    workers: int
    """Those that are not done with it."""


class StoreCounters:
    """Gives transfers their ids, and knows when every worker is done with a store. One thread."""

    def __init__(self, workers: int) -> None:
        """`workers` report each store."""
        self._workers = workers
        self._next = 0
        self._left: dict[int, _Store] = {}
        self._forgotten: dict[int, _Store] = {}

    def __len__(self) -> int:
        return len(self._left)

    def new_id(self) -> int:
        """For a transfer without a waiter in this process."""
        self._next += 1
        return self._next

    def begin(self, request_id: str, blocks: frozenset[int]) -> int:
        """The id of a store that is about to begin, and reads these blocks."""
        number = self.new_id()
        self._left[number] = _Store(request_id, blocks, self._workers)
        return number

    def requests(self) -> frozenset[str]:
        """Those with stores that are not over, forgotten ones among them."""
        return frozenset(store.request_id for left in (self._left, self._forgotten) for store in left.values())

    def of(self, requests: frozenset[str]) -> frozenset[int]:
        """The stores of these requests."""
        return frozenset(number for number, store in self._left.items() if store.request_id in requests)

    def reading(self, blocks: frozenset[int]) -> frozenset[int]:
        """The stores that read one of these blocks."""
        return frozenset(number for number, store in self._left.items() if not blocks.isdisjoint(store.blocks))

    def forget(self, stores: frozenset[int]) -> list[tuple[int, str]]:
        """They are over for us, whatever workers still say of them. Returns them with their requests."""
        gone = {number: self._left.pop(number) for number in stores}
        self._forgotten |= gone
        return [(number, store.request_id) for number, store in gone.items()]

    def note(self, report: WorkerReport) -> list[tuple[int, str]]:
        """The stores that are over with this report, and their requests. Other transfers in it are ignored."""
        over = []
        for number, workers in report.over.items():
            place = self._left if number in self._left else self._forgotten
            store = place.get(number)
            if store is None:
                continue
            if store.workers > workers:
                place[number] = store._replace(workers=store.workers - workers)
                continue
            del place[number]
            if place is self._left:
                over.append((number, store.request_id))
        return over
