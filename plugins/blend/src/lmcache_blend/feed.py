"""Keeps the index of chunks: what L1 gets is indexed, with the tokens that the server has read of it.

L1's journal says which chunks are stored, by hash; the hasher says which tokens a hash has, before the chunk can be stored.
Both are joined on a thread of their own.  A chunk that leaves L1 stays in the index, because a slower tier may have it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from lmcache_blend_index import ChunkIndex, Match, link
from lmcache_client.engine_key import PADDING, encode_header
from lmcache_core import Change, ChangeKind, ChunkHasher, Clock, KeySpace, Overrun, ReadTokens, ResidencyFeed
from lmcache_fleet.tokens import ChunkTokens, TokensJournal

logger = logging.getLogger(__name__)

QUEUED_CHUNKS_MAX: Final = 16_384
"""Chunks of which something was heard that was not looked at yet; more are dropped, and counted."""
KNOWN_CHUNKS_MAX: Final = 16_384
"""Chunks whose tokens are known and that may be stored soon: 20 MB with 256 tokens each."""
KNOWN_SECONDS: Final = 600.0
"""After which they are forgotten."""
KEYS_AT_ONCE: Final = 64
"""In one step, which has the index's lock: about 3 ms with 256 tokens each."""
STEPS_AT_ONCE: Final = 4
"""That a lookup takes to get what was stored before it."""
SNAPSHOT_KEYS: Final = 4096
POLL_SECONDS: Final = 0.05
_HASH_BYTES: Final = 32


class _Tokens(NamedTuple):
    place: int
    parent: bytes
    """Hash of the chunk before it; empty: there is none."""
    encoded: bytes
    """msgpack integers without a header."""
    heard_at: float


class _Read(NamedTuple):
    """Neighbouring chunks of a prompt."""

    first: int
    parent: bytes
    """Hash of the chunk before the first one; empty: there is none."""
    hashes: Sequence[bytes]
    encoded: Sequence[bytes]
    space: KeySpace | None = None
    """Where they are known to be stored."""


class _Note(NamedTuple):
    """Matches that were looked for."""

    there: Sequence[Match]
    gone: Sequence[Match]


class IndexFeed:
    """Owns the index.  Every method may be called from any thread; what a lookup asks for may wait for a step of the other
    thread, a few milliseconds."""

    def __init__(self, index: ChunkIndex, journal: ResidencyFeed, hasher: ChunkHasher, clock: Clock) -> None:
        self._index, self._journal, self._clock = index, journal, clock
        self._lock = threading.Lock()
        """Guards the index and all that is known."""
        self._known: OrderedDict[bytes, _Tokens] = OrderedDict()
        self._header = encode_header(index.chunk_tokens)
        self._queue: deque[_Read | _Note] = deque()
        self._queue_lock = threading.Lock()
        self._queued = 0
        self.dropped = self.without_tokens = self.overruns = 0
        """Chunks since the start: that were dropped because too many came at once, and that were stored while their tokens
        were not known.  And how often the journal was read too late."""
        self.unmatched = 0
        """Lookups that did not get the index in time."""
        self.journal: TokensJournal | None = None
        """Gets each chunk that is indexed, where other servers are to find it."""
        self.failure = ""
        """Why nothing is indexed any more."""
        self._closing = threading.Event()
        self._is_behind = False
        """The journal was read too late: what L1 has is to be read."""
        journal.open()
        self._cursor = journal.end
        self._end_listening = hasher.listen(self._heard)
        self._thread = threading.Thread(target=self._run, name="blend-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._end_listening()
        self._thread.join()
        self._journal.close()

    # --- on threads of requests

    def _heard(self, read: ReadTokens) -> None:
        first = len(read.hashes) - len(read.tokens)
        parent = read.hashes[first - 1] if first else b""
        self._enqueue(_Read(first, parent, read.hashes[first:], [bytes(each) for each in read.tokens]))

    def stored(self, space: KeySpace, hashes: Sequence[bytes], tokens: Sequence[int], places: Sequence[int]) -> None:
        """These chunks of a prompt were found: index those that are not indexed yet.  `hashes` are those of all its chunks."""
        encode, size = msgspec.msgpack.encode, self._index.chunk_tokens
        head = len(self._header)
        for at in places:
            encoded = encode(list(tokens[at * size : (at + 1) * size]))[head:]
            parent = hashes[at - 1] if at else b""
            self._enqueue(_Read(at, parent, [hashes[at]], [encoded], space))

    def stored_elsewhere(self, space: KeySpace, match: Match, parent: bytes, tokens: Sequence[int]) -> None:
        """This chunk of another server was found, and is here now.  `parent`: hash of the chunk before it.  `find` knows it."""
        encoded = msgspec.msgpack.encode(list(tokens))[len(self._header) :]
        self._enqueue(_Read(match.place, parent, [match.hash], [encoded], space))

    def note(self, there: Sequence[Match], gone: Sequence[Match]) -> None:
        """As `ChunkIndex.note`, for each, before anything is matched again.  Waits for nothing."""
        self._enqueue(_Note(there, gone))

    def _enqueue(self, item: _Read | _Note) -> None:
        with self._queue_lock:
            if self.failure or self._queued + _weight(item) > QUEUED_CHUNKS_MAX:
                self.dropped += _weight(item)
                return
            self._queued += _weight(item)
            self._queue.append(item)

    def match(
        self, spaces: Sequence[KeySpace], tokens: Callable[[], Sequence[int]], stride: int, seconds: float
    ) -> list[Match]:
        """As `ChunkIndex.match`, in any of the spaces, with what was stored before.  Nothing after a failure, and where the
        index is in use for `seconds`.  `tokens` is called where there is something to be found."""
        if not self._lock.acquire(timeout=seconds):
            with self._queue_lock:
                self.unmatched += 1
            return []
        try:
            for _ in range(STEPS_AT_ONCE):
                if self.failure or not self._step():
                    break
            found: list[Match] = []
            for space in spaces:
                if space in self._index and not self.failure:
                    found += self._index.match(space, tokens(), stride)
            return sorted(found) if len(spaces) > 1 else found
        except Exception as error:  # noqa: BLE001 - the request goes on without the index
            self._fail(error)
            return []
        finally:
            self._lock.release()

    def find(self, space: KeySpace, tokens: Sequence[int], chunk_hash: bytes) -> Match | None:
        """As `ChunkIndex.find`, with what was found before."""
        with self._lock:
            while self._queue and not self.failure:
                self._step()
            return None if self.failure else self._index.find(space, tokens, chunk_hash)

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._closing.wait(POLL_SECONDS) and not self.failure:
                more = True
                while more and not self._closing.is_set():
                    with self._lock:
                        more = self._step()
                if self._is_behind:
                    self._catch_up()
        except Exception as error:  # noqa: BLE001 - a thread's top: lookups go on without the index
            self._fail(error)

    def _catch_up(self) -> None:
        self._is_behind = False
        for part in self._journal.snapshot(SNAPSHOT_KEYS):
            for change in part.objects:
                with self._lock:
                    self._add(change)
            if self._closing.is_set():
                return

    def _fail(self, error: Exception) -> None:
        logger.error("nothing is indexed any more, blending finds exact chunks alone", exc_info=error)
        self.failure = f"{type(error).__name__}: {error}"
        with self._queue_lock:
            self._queue.clear()
            self._queued = 0

    # --- under the lock

    def _step(self) -> bool:
        """Tokens first: they were read before the chunk was stored.  True when there may be more."""
        done = 0
        while done < KEYS_AT_ONCE and self._queue:
            with self._queue_lock:
                item = self._queue.popleft()
                self._queued -= _weight(item)
            done += _weight(item)
            self._take(item)
        self._forget_old()
        if self._queue:
            return True
        changes = self._journal.read(self._cursor, KEYS_AT_ONCE)
        if isinstance(changes, Overrun):
            self.overruns += 1
            self._is_behind, self._cursor = True, self._journal.end
            return False
        for change in changes.changes:
            self._cursor += len(change.hashes) // _HASH_BYTES
            if change.kind is ChangeKind.STORE:
                self._add(change)
        return bool(changes.changes)

    def _take(self, read: _Read | _Note) -> None:
        if isinstance(read, _Note):
            for is_there, matches in ((True, read.there), (False, read.gone)):
                for match in matches:
                    self._index.note(match, is_there=is_there)
            return
        parent, now = read.parent, self._clock.monotonic()
        for at, (chunk_hash, encoded) in enumerate(zip(read.hashes, read.encoded, strict=True), read.first):
            tokens = _Tokens(at, parent, encoded, now)
            parent = chunk_hash
            if read.space:
                self._index_chunk(read.space, chunk_hash, tokens)
            else:
                self._known[chunk_hash] = tokens
                self._known.move_to_end(chunk_hash)

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic() - KNOWN_SECONDS
        known = self._known
        while known and (len(known) > KNOWN_CHUNKS_MAX or next(iter(known.values())).heard_at < oldest):
            known.popitem(last=False)

    def _add(self, change: Change) -> None:
        """Of the shards and object groups of a chunk, the first one counts: a lookup asks for all."""
        space = change.space
        if space.object_group or space.kv_rank >> 16 & 0xFF:
            return
        for at in range(0, len(change.hashes), _HASH_BYTES):
            chunk_hash = change.hashes[at : at + _HASH_BYTES]
            tokens = self._known.get(chunk_hash)
            if tokens is None:
                self.without_tokens += 1
            else:
                self._index_chunk(space, chunk_hash, tokens)

    def _index_chunk(self, space: KeySpace, chunk_hash: bytes, tokens: _Tokens) -> None:
        decoded = self._index.decode(tokens.encoded, self._index.chunk_tokens)
        if decoded[-1] == PADDING:  # the end of a prompt, which is shorter than a chunk
            return
        is_new = self._index.add(space, decoded, chunk_hash, tokens.place, link(tokens.parent))
        if is_new and self.journal is not None:
            self.journal.add(ChunkTokens(space, chunk_hash, tokens.parent, tokens.place, decoded.tobytes()))


def _weight(item: _Read | _Note) -> int:
    """Chunks."""
    return len(item.encoded) if isinstance(item, _Read) else len(item.there) + len(item.gone)
