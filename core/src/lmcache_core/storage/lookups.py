"""Lookups whose request is not over: what each found, holds, and has been asked."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import KeySpace

TAKEN = -1


@dataclass(slots=True, eq=False)
class Row:
    """One shard of a lookup: the slot of each chunk of the prefix, and how many reads of it are still to come."""

    slots: list[int]
    spaces: tuple[KeySpace, ...]
    in_l1: list[int] = field(default_factory=list)
    """The slots that were found at once, before anything was brought from L2."""
    reads_left: array[int] = field(default_factory=lambda: array("I"))


@dataclass(slots=True, eq=False)
class Lookup:
    """Not synchronised: the storage manager's lock guards it."""

    connection: bytes
    request_id: str
    lease: Lease
    rows: list[Row]
    readers: int
    begun: float
    prompt_chunks: int = 0
    noted_chunks: int = 0
    """Chunks whose hit the eviction policy was told of, by this lookup or by one that it replaced."""
    hit_chunks: int | None = None
    given: bool = False
    waiters: list[Callable[[int], bool]] = field(default_factory=list)

    def settle(self, hit_chunks: int) -> None:
        """The answer is known: every row holds exactly this prefix."""
        self.hit_chunks = hit_chunks
        for row in self.rows:
            del row.slots[hit_chunks:]
            row.reads_left = array("I", [self.readers]) * hit_chunks

    def claim(self, space: KeySpace, first_chunk: int, slots: list[int]) -> list[int]:
        """A worker holds these now: count one read of each.  Returns the slots that have no read left.

        What is counted here is taken out of `slots` (set to TAKEN), so that one read is never counted at two lookups:
        request ids are not unique among engines, and two of them may hold the same chunks under the same id."""
        spent = []
        for row in self.rows:
            if space not in row.spaces or not row.reads_left:
                continue
            for at, slot in enumerate(slots):
                chunk = first_chunk + at
                if chunk >= len(row.slots):
                    break
                if slot != TAKEN and row.slots[chunk] == slot and row.reads_left[chunk]:
                    slots[at] = TAKEN
                    row.reads_left[chunk] -= 1
                    if not row.reads_left[chunk]:
                        spent.append(slot)
        return spent

    def give_up(self, first_chunk: int, end_chunk: int) -> list[int]:
        """Nobody will read these: return the slots that were still to be read."""
        spent = []
        for row in self.rows:
            for chunk in range(max(0, first_chunk), min(end_chunk, len(row.reads_left))):
                if row.reads_left[chunk]:
                    row.reads_left[chunk] = 0
                    spent.append(row.slots[chunk])
        return spent


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

    def for_request(self, request_id: str) -> list[Lookup]:
        return self._by_request.get(request_id, [])

    def for_connection(self, connection: bytes) -> list[Lookup]:
        return list(self._by_connection.get(connection, {}).values())

    def oldest(self, connection: bytes, limit: int) -> Lookup | None:
        """The connection's oldest lookup, if it has as many as `limit`."""
        lookups = self._by_connection.get(connection, {})
        return next(iter(lookups.values())) if len(lookups) >= limit else None

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
