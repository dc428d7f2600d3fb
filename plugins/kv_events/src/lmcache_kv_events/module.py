"""The operation `subscribe_kv_events`: batches of what L1 has gained and lost, for engines whose KV events are on."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from lmcache_core import (
    DEFERRED,
    Call,
    Change,
    ChangeKind,
    Handler,
    HandlerMode,
    ModuleContext,
    Operation,
    Overrun,
    ProtocolError,
    ReadTokens,
    RequestModule,
    ResidencyFeed,
    SnapshotPart,
    Stream,
)

logger = logging.getLogger(__name__)

HASH_BYTES: Final = 32
BOUND_CHUNKS: Final = 65_536
"""Chunks whose tokens are remembered: about 85 MB with 256 tokens each."""
SUBSCRIBERS_MAX: Final = 64
EVENTS_MAX: Final = 4096
"""In one batch, whatever the subscriber asks for."""
READ_KEYS: Final = 4096
"""Changes that are read from L1 at a time."""
POLL_SECONDS: Final = 0.05
IDLE_POLL_SECONDS: Final = 0.5
KEPT_SECONDS: Final = 600.0
"""Tokens are remembered for this time after the last subscriber has gone: engines connect again."""
MODEL_NAME_MAX: Final = 1024


class KVEventRecord(msgspec.Struct, frozen=True):
    """One stored chunk, or some that were removed."""

    seq: int
    kind: str
    """`stored` or `removed`."""
    medium: str
    model_name: str
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    """The chunk before a stored one; None for the first of a prompt, and where it is not known."""
    token_ids: list[int]
    """Of a stored chunk; empty where they are not known."""


class KVEventBatch(msgspec.Struct, frozen=True):
    """`lost`: changes are missing before this batch.  What was announced may be gone; what L1 has follows."""

    enabled: bool
    incarnation: int
    """Another number after each start of the server."""
    next_cursor: int
    """What to subscribe with to go on behind this batch; 0: from the beginning."""
    lost: bool
    events: list[KVEventRecord]


SUBSCRIBE: Final = Operation("subscribe_kv_events", None, (int, str, int, int), KVEventBatch | None)


class Tokens(NamedTuple):
    parent: bytes | None
    encoded: bytes
    """Token ids as msgpack integers, without an array's header."""


class TokensOfChunks:
    """The tokens of the chunks that were read last.  Safe from any thread."""

    def __init__(self, chunk_tokens: int) -> None:
        self._header = b"\xdd" + chunk_tokens.to_bytes(4, "big")
        self._decode = msgspec.msgpack.Decoder(list[int]).decode
        self._lock = threading.Lock()
        self._chunks: OrderedDict[bytes, Tokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()

    def add(self, read: ReadTokens) -> None:
        """Prompts with a salt are not remembered: nothing of them is announced."""
        if read.cache_salt:
            return
        first = len(read.hashes) - len(read.tokens)
        with self._lock:
            for at, encoded in enumerate(read.tokens, first):
                self._chunks[read.hashes[at]] = Tokens(read.hashes[at - 1] if at else None, bytes(encoded))
            while len(self._chunks) > BOUND_CHUNKS:
                self._chunks.popitem(last=False)

    def find(self, chunk_hash: bytes) -> tuple[bytes | None, list[int]] | None:
        """The parent and the token ids."""
        with self._lock:
            found = self._chunks.get(chunk_hash)
        return None if found is None else (found.parent, self._decode(self._header + found.encoded))


class Subscription:
    """Belongs to the module's thread."""

    def __init__(self, stream: Stream, model_name: str, cursor: int, max_events: int) -> None:
        self.stream = stream
        self.model_name = model_name
        self.max_events = max_events
        self.cursor = cursor
        """The next change to read, once there is no snapshot."""
        self.snapshot: Iterator[SnapshotPart] | None = None
        self.is_lost = False
        self.waiting: deque[KVEventRecord] = deque()

    def wants(self, change: Change) -> bool:
        """A chunk has one event, that of its first shard and object group.  Chunks of tenants are not announced, because the
        records have no field for a salt."""
        space = change.space
        return (
            space.model_name == self.model_name
            and not space.cache_salt
            and space.object_group == 0
            and space.kv_rank >> 16 & 0xFF == 0
        )


class KVEventsModule(RequestModule):
    """A thread runs while there are subscribers.  It reads L1's changes, and sends each subscriber a batch as soon as the one
    before has been taken."""

    features = ("kv_event_stream",)

    def __init__(self, feed: ResidencyFeed, context: ModuleContext) -> None:
        self._feed, self._context = feed, context
        digest = blake2b(context.boot_id.encode(), digest_size=6).digest()
        self._incarnation = int.from_bytes(digest, "big")
        self._tokens = TokensOfChunks(context.chunk_tokens)
        self._wake = threading.Event()
        self._lock = threading.Lock()  # guards the four below
        self._served_at = 0.0
        self._subscriptions: list[Subscription] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._events = self._lost = self._without_tokens = 0

    def handlers(self) -> Sequence[Handler]:
        return [Handler(SUBSCRIBE, self.subscribe, HandlerMode.INLINE)]

    def subscribe(self, call: Call, instance_id: int, model_name: str, cursor: int, max_events: int) -> object:
        if not 0 < len(model_name) <= MODEL_NAME_MAX:
            raise ProtocolError(f"model_name has {len(model_name)} characters; 1 to {MODEL_NAME_MAX} are allowed")
        if cursor < 0 or max_events < 1:
            raise ProtocolError(f"cursor {cursor} and max_events {max_events}: at least 0 and 1 are allowed")
        with self._lock:
            self._subscriptions = [each for each in self._subscriptions if each.stream.is_open]
            if self._is_closed or len(self._subscriptions) >= SUBSCRIBERS_MAX:
                raise ProtocolError(
                    f"{SUBSCRIBERS_MAX} subscribers are connected, which is the limit; stop one of them"
                )
            self._served_at = self._context.clock.monotonic()
            stream = call.stream(self._wake.set)
            self._subscriptions.append(Subscription(stream, model_name, cursor, min(max_events, EVENTS_MAX)))
            if self._thread is None:
                end_listening = self._context.hasher.listen(self._tokens.add)
                self._thread = threading.Thread(target=self._run, args=(end_listening,), name="kv-events", daemon=True)
                self._thread.start()
        self._wake.set()
        return DEFERRED

    def status(self) -> dict[str, object]:
        """Since the server started."""
        return {
            "subscribers": len(self._subscriptions),
            "events": self._events,
            "lost": self._lost,
            "without_tokens": self._without_tokens,
            "chunks_with_tokens": len(self._tokens),
        }

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    # --- on the module's thread

    def _run(self, end_listening: Callable[[], None]) -> None:
        clock = self._context.clock
        reads = False
        while True:
            self._wake.wait(POLL_SECONDS if reads else IDLE_POLL_SECONDS)
            self._wake.clear()
            with self._lock:
                served = self._open_subscriptions()
                if served:
                    self._served_at = clock.monotonic()
                elif self._is_closed or clock.monotonic() - self._served_at > KEPT_SECONDS:
                    self._thread = None
                    end_listening()
                    self._tokens.clear()
            if reads is not bool(served):
                reads = bool(served)
                (self._feed.open if reads else self._feed.close)()
            if self._thread is None:
                return
            try:
                for subscription in served:
                    self._serve(subscription)
            except Exception:  # a thread's top: subscribers connect anew and begin with what L1 has
                logger.exception("KV events failed; subscribers are cut off")
                for subscription in served:
                    subscription.stream.end()

    def _open_subscriptions(self) -> list[Subscription]:
        """Those that listen; the others are forgotten.  All of them, when the module closes."""
        served = [each for each in self._subscriptions if each.stream.is_open and not self._is_closed]
        for each in self._subscriptions:
            if each not in served:
                each.stream.end()
        self._subscriptions = served
        return list(served)

    def _serve(self, subscription: Subscription) -> None:
        while subscription.stream.may_send and subscription.stream.is_open:
            if not subscription.waiting and not self._read(subscription):
                return
            waiting = subscription.waiting
            events = [waiting.popleft() for _ in range(min(len(waiting), subscription.max_events))]
            if not events and not subscription.is_lost:
                continue
            is_whole = subscription.snapshot is None and not waiting
            cursor = subscription.cursor if is_whole else 0
            batch = KVEventBatch(True, self._incarnation, cursor, subscription.is_lost, events)
            subscription.is_lost = False
            subscription.stream.send(batch)
            self._events += len(events)

    def _read(self, subscription: Subscription) -> bool:
        """False when nothing has happened."""
        if subscription.snapshot is None and subscription.cursor:
            changes = self._feed.read(subscription.cursor, READ_KEYS)
            if not isinstance(changes, Overrun):
                number = changes.first
                for change in changes.changes:
                    self._add(subscription, change, number)
                    number += len(change.hashes) // HASH_BYTES
                subscription.cursor = number
                return bool(changes.changes)
            subscription.is_lost = True
            self._lost += 1
            logger.warning("KV events were lost, and L1's contents are sent anew model=%s", subscription.model_name)
        if subscription.snapshot is None:
            subscription.snapshot = self._feed.snapshot(READ_KEYS)
        part = next(subscription.snapshot, None)
        if part is None:
            subscription.snapshot = None
            return bool(subscription.is_lost)
        subscription.cursor = part.begins_at
        for change in part.objects:
            self._add(subscription, change, part.begins_at)
        return True

    def _add(self, subscription: Subscription, change: Change, number: int) -> None:
        if not subscription.wants(change):
            return
        hashes = [change.hashes[at : at + HASH_BYTES] for at in range(0, len(change.hashes), HASH_BYTES)]
        name = change.space.model_name
        if change.kind is ChangeKind.DELETE:
            subscription.waiting.append(KVEventRecord(number, "removed", "CPU", name, hashes, None, []))
            return
        for seq, chunk_hash in enumerate(hashes, number):
            known = self._tokens.find(chunk_hash)
            self._without_tokens += known is None
            parent, token_ids = known or (None, [])
            subscription.waiting.append(KVEventRecord(seq, "stored", "CPU", name, [chunk_hash], parent, token_ids))


def open_module(settings: None, context: ModuleContext) -> KVEventsModule:
    """Raises ValueError where the server has no feed of L1."""
    if context.residency is None:
        raise ValueError("this server has no feed of L1's changes")
    return KVEventsModule(context.residency, context)
