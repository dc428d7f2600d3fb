"""Lookups whose request is not over: what each found, holds, and has been asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.contracts.storage import PromptFacts
from lmcache_core.controllers.prefetch_request import Prefetch
from lmcache_core.controllers.reach import ABSENT, Reach
from lmcache_core.l1.leases import Lease
from lmcache_core.model.bitmap import Bitmap
from lmcache_core.model.keys import KeySpace
from lmcache_core.storage.lookup_rows import Row

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Lookup:
    """Not synchronised: the lock of `Lookups` guards it."""

    connection: bytes
    request_id: str
    lease: Lease
    readers: int
    begun: float
    prompt_chunks: int
    sparse: bool
    prompt: PromptFacts
    chunk_tokens: int
    rows: list[Row] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)
    prefetch: Prefetch | None = None
    """What goes on in L2 for it, or went on."""
    noted_chunks: int = 0
    """Chunks whose hit the eviction policy was told of, by this lookup or by one that it replaced."""
    answer: int | Bitmap | None = None
    hit_chunks: int = 0
    l2_chunks: int = 0
    """Of these, chunks that L1 did not have of every shard at once."""
    held_objects: int = 0
    """What the answer takes, one for each shard of a chunk; `l2_objects` of them were not in L1 at once."""
    l2_objects: int = 0
    over: bool = False
    """It is in the table no more, and gets no answer that it has not got."""
    given: bool = False
    waiters: list[Callable[[Any], bool]] = field(default_factory=list)

    @property
    def nothing(self) -> int | Bitmap:
        """The answer of a lookup that is over or was never heard of."""
        return Bitmap(0) if self.sparse else 0

    def settle(self, reach: Reach) -> list[int]:
        """The answer is known: hold exactly what it takes.  Returns the slots to let go."""
        self.answer = reach.answer
        self.hit_chunks = reach.answer if isinstance(reach.answer, int) else len(reach.answer)
        self.held_objects = sum(map(len, reach.needed))
        if self.prefetch is not None:
            self._count_l2(reach)
        rest: list[int] = []
        for row, needed in zip(self.rows, reach.needed, strict=True):
            rest += row.settle(needed, self.readers)
        return rest

    def holds_any(self, space: KeySpace, slots: Sequence[int]) -> bool:
        """Did its answer take one of these?"""
        return any(space in row.spaces and not set(slots).isdisjoint(row.slots) for row in self.rows)

    def claim(self, space: KeySpace, first_chunk: int, slots: Sequence[int]) -> list[int]:
        """A worker holds these now (see `Row.claim`)."""
        spent: list[int] = []
        for row in self.rows:
            if space in row.spaces:
                spent += row.claim(first_chunk, slots)
        return spent

    def give_up(self, first_chunk: int, end_chunk: int) -> list[int]:
        """Nobody will read these: returns the slots that were still to be read."""
        spent: list[int] = []
        for row in self.rows:
            spent += row.give_up(first_chunk, end_chunk)
        return spent

    def facts(self, seconds: float) -> RequestFacts:
        """What policies may know of its request."""
        return RequestFacts(seconds, request_number(self.request_id), self.prompt_chunks, self.hit_chunks)

    def _count_l2(self, reach: Reach) -> None:
        chunks: set[int] = set()
        for row, needed in zip(self.rows, reach.needed, strict=True):
            brought = [chunk for chunk in needed if row.in_l1[chunk] == ABSENT]
            self.l2_objects += len(brought)
            chunks.update(brought)
        self.l2_chunks = len(chunks)


class LookupTable:
    """Lookups by (connection, request id), and by request id alone for workers, who sit on other connections."""

    def __init__(self) -> None:
        self._by_owner: dict[tuple[bytes, str], Lookup] = {}
        self._by_request: dict[str, list[Lookup]] = {}
        self._by_connection: dict[bytes, dict[str, Lookup]] = {}

    def __len__(self) -> int:
        return len(self._by_owner)

    def find(self, connection: bytes, request_id: str) -> Lookup | None:
        return self._by_owner.get((connection, request_id))

    def for_request(self, request_id: str) -> Sequence[Lookup]:
        return self._by_request.get(request_id, ())

    def for_connection(self, connection: bytes) -> list[Lookup]:
        return list(self._by_connection.get(connection, {}).values())

    def oldest(self, connection: bytes, limit: int) -> Lookup | None:
        """The connection's oldest lookup, if it has as many as `limit`."""
        lookups = self._by_connection.get(connection, {})
        return next(iter(lookups.values())) if len(lookups) >= limit else None

    def oldest_begun(self) -> float | None:
        """When the one that was added first began."""
        return next((lookup.begun for lookup in self._by_owner.values()), None)

    def everything(self) -> list[Lookup]:
        return list(self._by_owner.values())

    def add(self, lookup: Lookup) -> None:
        self._by_owner[lookup.connection, lookup.request_id] = lookup
        self._by_request.setdefault(lookup.request_id, []).append(lookup)
        self._by_connection.setdefault(lookup.connection, {})[lookup.request_id] = lookup

    def pop(self, connection: bytes, request_id: str) -> Lookup | None:
        lookup = self._by_owner.pop((connection, request_id), None)
        if lookup is None:
            return None
        siblings = self._by_request[request_id]
        siblings.remove(lookup)
        if not siblings:
            del self._by_request[request_id]
        of_connection = self._by_connection[connection]
        del of_connection[request_id]
        if not of_connection:
            del self._by_connection[connection]
        return lookup


def tell(waiters: Sequence[Callable[[Any], bool]], answer: int | Bitmap, request_id: str) -> bool:
    """Call everybody who waits for an answer.  True when one of them has taken it."""
    taken = False
    for waiter in waiters:
        try:
            taken = waiter(answer) or taken
        except (Exception, SystemExit):  # a plugin boundary: the others wait, too
            logger.exception("a request module failed to take the answer of a lookup request=%s", request_id)
    return taken


def request_number(request_id: str) -> int:
    """For policies, which tell requests apart and need no more than that."""
    return hash(request_id) & 0x7FFFFFFFFFFFFFFF if request_id else 0
