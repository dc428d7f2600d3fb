"""Lookups whose request is not over: what each found, what it references in L1, and how many reads of it are to come.

Not synchronised: the lock of `Lookups` guards all of it.  Reads are counted in bytes (`READERS_MAX`).  A request's workers
take whole runs, and requests hit whole prompts, so the usual cases compare and cut arrays and do not loop over chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Self

from msgspec.structs import replace

from lmcache_core.contracts.events import LookupAbandoned, LookupFinished, LookupHashes, LookupStarted
from lmcache_core.contracts.policies import RequestFacts
from lmcache_core.contracts.storage import LookupRequest, PromptFacts, SparseLookupRequest
from lmcache_core.controllers.prefetch_request import ABSENT, Prefetch, PrefixMatch
from lmcache_core.l1.leases import Lease
from lmcache_core.model.keys import KeySpace
from lmcache_core.model.results import Bitmap

logger = logging.getLogger(__name__)


class PrefixRow:
    """What a lookup of a prefix references of one shard: a run of chunks.

    `slots` has one entry per chunk of the request until `keep`, ABSENT where the chunk is not there; afterwards `slots[0]`
    is that of chunk `first`.  `in_l1` is `slots` as they were found at once, before anything was brought from L2."""

    __slots__ = ("first", "in_l1", "reads_left", "slots", "spaces")

    def __init__(self, slots: list[int], spaces: tuple[KeySpace, ...]) -> None:
        self.slots = slots
        self.spaces = spaces
        self.in_l1: list[int] = []
        self.first = 0
        self.reads_left = bytearray()

    def keep(self, needed: Sequence[int], readers: int) -> list[int]:
        """The answer is known, and takes these chunks, rising: each will be read `readers` times.  Returns the slots that
        are not needed."""
        first, end = (needed[0], needed[-1] + 1) if needed else (0, 0)
        rest = self.slots[:first] + self.slots[end:]
        self.first = first
        if rest:
            self.slots = self.slots[first:end]
        self.reads_left = bytearray([readers]) * (end - first)
        return [slot for slot in rest if slot != ABSENT]

    def claim(self, first_chunk: int, slots: Sequence[int]) -> list[int]:
        """A worker references these now: count one read of each.  Returns the slots that have no read left."""
        begin = first_chunk - self.first
        left = self.reads_left[max(0, begin) : max(0, begin + len(slots))]
        if not left:
            return []
        if begin >= 0 and left.count(left[0]) == len(slots) and self.slots[begin : begin + len(slots)] == list(slots):
            return self._claim_run(begin, slots, left[0])
        spent = []
        for at in range(max(0, -begin), min(len(slots), len(self.slots) - begin)):
            slot, chunk = slots[at], begin + at
            if self.slots[chunk] == slot and self.reads_left[chunk]:
                self.reads_left[chunk] -= 1
                if not self.reads_left[chunk]:
                    spent.append(slot)
        return spent

    def release_range(self, first_chunk: int, end_chunk: int) -> list[int]:
        """No worker will read these: returns the slots that were still to be read."""
        begin, end = max(0, first_chunk - self.first), max(0, end_chunk - self.first)
        left = self.reads_left[begin:end]
        slots = self.slots[begin : begin + len(left)]
        self.reads_left[begin:end] = bytes(len(left))
        return list(compress(slots, left)) if 0 in left else slots

    def take_hits(self, first_chunk: int) -> list[int]:
        """What the answer takes and was in L1 at once, of the chunks from this one on.  Given once."""
        found, self.in_l1 = self.in_l1, []
        if len(found) != len(self.slots) or first_chunk > self.first:
            found = found[max(first_chunk, self.first) : self.first + len(self.slots)]
        return [slot for slot in found if slot != ABSENT] if ABSENT in found else found

    def positions(self) -> dict[int, int]:
        """The chunk of each slot that the answer takes."""
        return {slot: chunk for chunk, slot in enumerate(self.slots, self.first)}

    def _claim_run(self, begin: int, slots: Sequence[int], reads: int) -> list[int]:
        if not reads:
            return []
        self.reads_left[begin : begin + len(slots)] = bytes([reads - 1]) * len(slots)
        return list(slots) if reads == 1 else []


class SparseRow:
    """The same for a sparse lookup: any chunks.  Workers read them in whatever order, so that a read is known by its slot;
    the same chunk may be asked for at several places, and is then read as often."""

    __slots__ = ("_freed", "_readers", "_reads_left", "in_l1", "slots", "spaces")

    def __init__(self, slots: list[int], spaces: tuple[KeySpace, ...]) -> None:
        self.slots = slots
        self.spaces = spaces
        self.in_l1: list[int] = []
        self._readers = 0
        self._reads_left: dict[int, int] = {}
        self._freed = bytearray(len(slots))

    def keep(self, needed: Sequence[int], readers: int) -> list[int]:
        self._readers = readers
        for chunk in needed:
            slot = self.slots[chunk]
            self._reads_left[slot] = self._reads_left.get(slot, 0) + readers
        rest = {slot for slot in self.slots if slot != ABSENT and slot not in self._reads_left}
        places = frozenset(needed)
        self.slots = [slot if place in places else ABSENT for place, slot in enumerate(self.slots)]
        return list(rest)

    def claim(self, first_chunk: int, slots: Sequence[int]) -> list[int]:
        spent = []
        for slot in slots:
            if self._reads_left.get(slot):
                spent += self._count(slot, 1)
        return spent

    def release_range(self, first_chunk: int, end_chunk: int) -> list[int]:
        spent = []
        for place in range(max(0, first_chunk), min(end_chunk, len(self.slots))):
            slot = self.slots[place]
            if not self._freed[place] and self._reads_left.get(slot):
                self._freed[place] = 1
                spent += self._count(slot, min(self._readers, self._reads_left[slot]))
        return spent

    def take_hits(self, first_chunk: int) -> list[int]:
        """Nothing for a sparse lookup that comes again: its hits are known."""
        found, self.in_l1 = set(self.in_l1), []
        return [slot for slot in self._reads_left if slot in found] if first_chunk == 0 else []

    def positions(self) -> dict[int, int]:
        return {slot: chunk for chunk, slot in reversed(list(enumerate(self.slots)))}

    def _count(self, slot: int, reads: int) -> list[int]:
        self._reads_left[slot] -= reads
        return [] if self._reads_left[slot] else [slot]


Row = PrefixRow | SparseRow


@dataclass(slots=True, eq=False)
class Lookup:
    """One lookup of one request, until the request is over."""

    connection: bytes
    request_id: str
    lease: Lease
    readers: int
    started_at: float
    prompt_chunks: int
    sparse: bool
    prompt: PromptFacts
    chunk_tokens: int
    """Tokens of a chunk; 0 where there is no shard, and so nothing to be found."""
    number: int
    """Of its request (`request_number`)."""
    rows: list[Row] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)
    prefetch: Prefetch | None = None
    """What goes on in L2 for it, or went on."""
    notified_chunks: int = 0
    """Chunks whose hit the eviction policy was notified of, by this lookup or by one that it replaced."""
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

    @classmethod
    def of(cls, request: LookupRequest, lease: Lease, now: float) -> Self:
        """Where a request says nothing of its prompt, or less than it asks for, that follows from its shards and hashes."""
        prompt, chunks = request.prompt, len(request.chunk_hashes)
        space = next((shard.spaces[0].space for shard in request.shards if shard.spaces), None)
        chunk_tokens = space.chunk_tokens if space else 0
        tokens = chunks * chunk_tokens
        if prompt is None:
            model_name, salt = (space.model_name, space.cache_salt) if space else ("", "")
            prompt = PromptFacts(model_name, salt, len(request.shards), tokens, chunks)
        elif prompt.chunks < chunks or prompt.tokens < tokens:
            prompt = replace(prompt, chunks=max(prompt.chunks, chunks), tokens=max(prompt.tokens, tokens))
        sparse = isinstance(request, SparseLookupRequest)
        readers, request_id = max(1, request.readers), request.request_id
        return cls(
            request.connection,
            request_id,
            lease,
            readers,
            now,
            chunks,
            sparse,
            prompt,
            chunk_tokens,
            request_number(request_id),
        )

    def set_answer(self, match: PrefixMatch) -> list[int]:
        """The answer is known: keep references to exactly what it takes.  Returns the slots to release."""
        self.answer = match.answer
        self.hit_chunks = match.answer if isinstance(match.answer, int) else len(match.answer)
        self.held_objects = sum(map(len, match.needed))
        if self.prefetch is not None:
            self._count_l2(match)
        rest: list[int] = []
        for row, needed in zip(self.rows, match.needed, strict=True):
            rest += row.keep(needed, self.readers)
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

    def release_range(self, first_chunk: int, end_chunk: int) -> list[int]:
        """No worker will read these: returns the slots that were still to be read."""
        spent: list[int] = []
        for row in self.rows:
            spent += row.release_range(first_chunk, end_chunk)
        return spent

    def facts(self, seconds: float) -> RequestFacts:
        """What policies may know of its request."""
        return RequestFacts(seconds, self.number, self.prompt_chunks, self.hit_chunks)

    # --- events

    def started(self) -> LookupStarted:
        prompt = self.prompt
        return LookupStarted(
            self.request_id, prompt.model_name, prompt.cache_salt, prompt.tokens, prompt.chunks, prompt.trace_context
        )

    def hashes(self, chunk_hashes: Sequence[bytes]) -> LookupHashes:
        prompt, joined = self.prompt, b"".join(chunk_hashes)
        return LookupHashes(
            self.request_id, prompt.model_name, prompt.cache_salt, prompt.world_size, prompt.tokens, joined
        )

    def finished(self, seconds: float) -> LookupFinished:
        prompt = self.prompt
        return LookupFinished(
            self.request_id,
            prompt.model_name,
            prompt.cache_salt,
            prompt.chunks,
            self.hit_chunks,
            self.l2_chunks,
            seconds,
            prompt.tokens,
            prompt.trace_context,
        )

    def abandoned(self, seconds: float) -> LookupAbandoned:
        prompt = self.prompt
        return LookupAbandoned(
            self.request_id, prompt.model_name, prompt.cache_salt, prompt.tokens, prompt.chunks, seconds
        )

    def _count_l2(self, match: PrefixMatch) -> None:
        chunks: set[int] = set()
        for row, needed in zip(self.rows, match.needed, strict=True):
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

    def oldest_started(self) -> float | None:
        """When the one that was added first began."""
        return next((lookup.started_at for lookup in self._by_owner.values()), None)

    def everything(self) -> list[Lookup]:
        return list(self._by_owner.values())

    def add(self, lookup: Lookup, limit: int) -> tuple[Lookup | None, Lookup | None]:
        """Returns the lookup of the same request, which it replaces, and the connection's oldest lookup where there are
        `limit` others."""
        connection, request_id = lookup.connection, lookup.request_id
        replaced = self.pop(connection, request_id) if (connection, request_id) in self._by_owner else None
        of_connection = self._by_connection.setdefault(connection, {})
        oldest = next(iter(of_connection.values())) if len(of_connection) >= limit else None
        of_connection[request_id] = self._by_owner[connection, request_id] = lookup
        self._by_request.setdefault(request_id, []).append(lookup)
        return replaced, oldest

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


def notify(waiters: Sequence[Callable[[Any], bool]], answer: int | Bitmap, request_id: str) -> bool:
    """Call each waiter for an answer.  True when one of them has taken it."""
    taken = False
    for waiter in waiters:
        try:
            taken = waiter(answer) or taken
        except (Exception, SystemExit):  # a plugin boundary: the others wait, too
            logger.exception("a request module failed to take the answer of a lookup request=%s", request_id)
    return taken


def request_number(request_id: str) -> int:
    """A number for policies, which distinguish requests by it; 0 for an empty ID."""
    return hash(request_id) & 0x7FFFFFFFFFFFFFFF if request_id else 0
