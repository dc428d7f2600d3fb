"""Stores that workers were told of and are not done with."""

from __future__ import annotations

from lmcache_vllm.metadata import WorkerReport


class StoreLedger:
    """Gives transfers their ids, and knows when every worker is done with a store. One thread."""

    def __init__(self, workers: int) -> None:
        """`workers` report each store."""
        self._workers = workers
        self._next = 0
        self._left: dict[int, tuple[str, int]] = {}

    def new_id(self) -> int:
        """For a transfer that nobody waits for here."""
        self._next += 1
        return self._next

    def begin(self, request_id: str) -> int:
        """The id of a store that is about to begin."""
        store = self.new_id()
        self._left[store] = (request_id, self._workers)
        return store

    def requests(self) -> frozenset[str]:
        """Those with stores that are not over."""
        return frozenset(request_id for request_id, _ in self._left.values())

    def forget(self, requests: frozenset[str]) -> None:
        """Their stores are over for us, whatever workers still say of them."""
        if requests:
            self._left = {store: entry for store, entry in self._left.items() if entry[0] not in requests}

    def note(self, report: WorkerReport) -> list[tuple[int, str]]:
        """The stores that are over with this report, and their requests. Other transfers in it are ignored."""
        over = []
        for store, workers in report.over.items():
            request_id, left = self._left.get(store, ("", 0))
            if left > workers:
                self._left[store] = (request_id, left - workers)
            elif left:
                del self._left[store]
                over.append((store, request_id))
        return over
