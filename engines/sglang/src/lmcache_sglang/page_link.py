"""One rank's connection to the server: pages by their hashes."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from lmcache_client import (
    ABANDON_STORE,
    COMMIT_RETRIEVE,
    END_SESSION,
    NO_TOKENS,
    PING,
    WAIT_PREFETCH_STATUS,
    EngineChannel,
    HashedKey,
    Heartbeat,
    L1Segment,
    LayoutPart,
    LMCacheError,
    NoAnswerError,
    Operation,
    ServerChange,
    ServerHello,
    SharedMemoryOffer,
    SlotDescriptor,
    WorkerRegistration,
)
from lmcache_sglang.settings import LinkSettings

logger = logging.getLogger(__name__)

HASHES: Final = "sglang-sha256-pages"
"""The algorithm, as keys name it: a chain of SHA-256 over pages, which begins with salt and extra key."""
HASTE: Final = 10
"""After a wait for another tier in vain, none is that long for ten times as long: the engine computes most of the time."""

HASH_BYTES: Final = 32
PAGE_SIZE_MIN: Final = 16
"""An object for fewer tokens costs more than it saves."""


def digests(hashes: Sequence[str]) -> list[bytes]:
    """Raises ValueError for all but SHA-256, and for one that is there twice: each is of all tokens before it."""
    found = []
    for each in hashes:
        try:
            found.append(bytes.fromhex(each))
        except (TypeError, ValueError):
            raise ValueError(f"the page hash {each!r:.80} is not hexadecimal") from None
        if len(found[-1]) != HASH_BYTES:
            raise ValueError(f"the page hash {each:.80} has {len(found[-1])} bytes; a SHA-256 has {HASH_BYTES}")
    if len(set(found)) < len(found):
        raise ValueError("a page hash is there twice: each is of all tokens up to the end of its page")
    return found


class Registration(NamedTuple):
    """At one start of a server."""

    segment: L1Segment
    chunk_tokens: int


class PageLink:
    """Pages of one model name.  Any thread.

    Without a server nothing is found and nothing stored; the heartbeat finds one that comes, or that was started again, and
    registers with it.  A page takes the place of the server's chunk in keys: hashes say all of it.
    """

    def __init__(self, settings: LinkSettings, model_name: str, layout: LayoutPart) -> None:
        """Waits for the server as long as a request may take."""
        self._settings, self._model_name, self._layout = settings, model_name, layout
        self._channel = EngineChannel(settings.url, settings.timeout_seconds)
        self._instance_id = uuid.uuid4().int >> 65
        self._now: Registration | None = None
        self._mapped: L1Segment | None = None
        self._slow: Future[Any] | None = None
        self._hasty_until = 0.0
        self._lock = threading.Lock()  # guards the two below
        self._copies = 0
        self._is_closed = False
        hello = None
        try:
            hello = self._register()
        except LMCacheError as error:
            logger.warning("the engine runs uncached until a server takes it url=%s error=%s", settings.url, error)
        # Without an id, it keeps what lookups hold; with one, the worker.
        self._beats = [
            Heartbeat(
                self._channel, change, instance_id=instance_id, interval_seconds=settings.heartbeat_seconds, hello=hello
            )
            for instance_id, change in ((None, lambda change: None), (self._instance_id, self._changed))
        ]
        for beat in self._beats:
            beat.start()

    @property
    def server(self) -> Registration | None:
        """The one that answers.  Another start of it is another one: it holds nothing of what this one held."""
        return self._now if self.is_ready() else None

    def is_ready(self) -> bool:
        """Is there a server, and does it answer in time?"""
        slow = self._slow
        if slow is not None and slow.done():
            self._slow = None if slow.exception() is None else self._ping()
        return self._now is not None and self._slow is None and all(beat.healthy for beat in self._beats)

    def lookup(self, request_id: str, hashes: Sequence[bytes]) -> int:
        """How many leading pages the server has.  They are held for the request until `end`."""
        now = self.server
        if now is None:
            return 0
        try:
            hits = self._hits(self._key(now, request_id, hashes))
            if hits:
                return hits
        except (FutureTimeoutError, NoAnswerError):
            logger.warning(
                "the server was silent for %d ms: lookups find nothing until it answers a ping",
                self._settings.lookup_timeout_ms,
            )
            self._slow = self._ping()
        except LMCacheError as error:
            logger.warning("a lookup failed request=%s error=%s", request_id, error)
        self.end(request_id)
        return 0

    def _hits(self, key: HashedKey) -> int:
        """Raises FutureTimeoutError or NoAnswerError where the server is silent."""
        silence, begin = self._settings.lookup_timeout_ms / 1000, time.monotonic()
        patience = self._settings.prefetch_timeout_seconds if begin >= self._hasty_until else 0.0
        answer = self._channel.submit_lookup(key, wait_seconds=silence / 2)
        while (hits := answer.result(silence)) is None:
            waited = time.monotonic() - begin
            if waited >= patience:
                if patience:
                    self._hasty_until = time.monotonic() + HASTE * patience
                    logger.warning(
                        "the server took more than %g s to read pages from another tier: they are computed; for the next %g s "
                        "lookups wait %g s for that",
                        patience,
                        HASTE * patience,
                        silence / 2,
                    )
                return 0
            wait = min(silence / 2, patience - waited)
            answer = self._channel.submit(WAIT_PREFETCH_STATUS, key.request_id, wait, timeout_seconds=silence)
        return int(hits)

    def end(self, request_id: str) -> None:
        """Release what is held for the request.  Does not wait."""
        self._tell(END_SESSION, request_id)

    @contextmanager
    def reading(self, request_id: str, hashes: Sequence[bytes]) -> Iterator[list[memoryview]]:
        """The bytes of all these pages, at their place in L1, until the block ends.  The server keeps them there
        until it hears of that end.  Raises LMCacheError where one is missing, and where the server was lost before the block
        ended."""
        with self._copy():
            yield from self._read(request_id, hashes)

    def _read(self, request_id: str, hashes: Sequence[bytes]) -> Iterator[list[memoryview]]:
        now = self._registered()
        key = self._key(now, request_id, hashes)
        try:
            found = self._channel.prepare_retrieve(key, self._instance_id).context
            if found is None or found.slots is UNSET or len(found.slots) != len(hashes):
                raise LMCacheError(f"{len(hashes)} pages were found by the lookup, and are gone")
            yield self._payloads(now, found.slots)
        except BaseException:  # also where no answer came: a server that was only slow holds the pages by then
            self._tell(COMMIT_RETRIEVE, key, self._instance_id)
            raise
        self._channel.commit_retrieve(key, self._instance_id)
        if self._now is not now:
            raise LMCacheError("the server was started again while pages were read")

    @contextmanager
    def writing(self, hashes: Sequence[bytes]) -> Iterator[tuple[list[int], list[memoryview]]]:
        """The places of those pages that are not there yet, and their bytes at their place in L1.  They are published, all at
        once, when the block ends, and given back where it raises.  Raises LMCacheError."""
        with self._copy():
            yield from self._write(hashes)

    def _write(self, hashes: Sequence[bytes]) -> Iterator[tuple[list[int], list[memoryview]]]:
        now = self._registered()
        request_id = f"store-{uuid.uuid4().hex}"
        key = self._key(now, request_id, hashes)
        try:
            context = self._channel.prepare_store(key, self._instance_id).context
            if context is None or context.slots is UNSET or context.chunk_indices is UNSET or not context.slots:
                yield [], []
                return
            yield list(context.chunk_indices), self._payloads(now, context.slots)
        except BaseException:  # also where no answer came: a server that was only slow has given out the slots by then
            self._tell(ABANDON_STORE, key, self._instance_id)
            raise
        if not self._channel.commit_store(key, self._instance_id):
            raise LMCacheError("the server did not take what was written")

    def count(self, hashes: Sequence[bytes]) -> int:
        """How many leading pages the server has now.  Nothing is held."""
        request_id = f"check-{uuid.uuid4().hex}"
        try:
            return self.lookup(request_id, hashes)
        finally:
            self.end(request_id)

    def close(self) -> None:
        """Unregisters, where the server answers; what copies are under way do that with their end.  May be called again."""
        for beat in self._beats:
            beat.stop()
        with self._lock:
            self._now, self._is_closed = None, True
            copies = self._copies
        if not copies:
            self._leave()

    @contextmanager
    def _copy(self) -> Iterator[None]:
        """Around each use of slots: the server gives those of a worker that unregisters to others at once."""
        with self._lock:
            self._copies += 1
        try:
            yield
        finally:
            with self._lock:
                self._copies -= 1
                is_last = self._is_closed and not self._copies
            if is_last:
                self._leave()

    def _leave(self) -> None:
        if self._mapped is not None:
            with suppress(LMCacheError):
                self._channel.unregister_engine_driven(self._instance_id)
            self._mapped.close()
        self._channel.close()

    def _registered(self) -> Registration:
        now = self._now
        if now is None:
            raise LMCacheError("there is no server")
        return now

    def _key(self, now: Registration, request_id: str, hashes: Sequence[bytes]) -> HashedKey:
        end = len(hashes) * now.chunk_tokens
        return HashedKey(
            self._model_name,
            1,
            0,
            NO_TOKENS,
            0,
            end,
            request_id,
            num_kv_readers=1,
            chunk_hashes=list(hashes),
            hash_algorithm=HASHES,
        )

    def _payloads(self, now: Registration, slots: Sequence[SlotDescriptor]) -> list[memoryview]:
        """Raises LMCacheError where the slots may be another server's, whose memory is not this segment."""
        found = [now.segment.payload(slot) for slot in slots]
        if self._now is not now:
            raise LMCacheError("the server was started again meanwhile")
        return found

    def _tell(self, operation: Operation, *payload: Any) -> None:
        """Requests of a connection are done in their order, and so this is done after those that got no answer."""
        with suppress(LMCacheError):
            self._channel.tell(operation, *payload)

    def _ping(self) -> Future[Any] | None:
        """A future for the answer.  None where the channel is closed."""
        try:
            return self._channel.submit(PING, None)
        except LMCacheError:
            return None

    def _changed(self, change: ServerChange) -> None:
        if change is ServerChange.RESTARTED or (change is ServerChange.BACK and self._now is None):
            self._register()

    def _register(self) -> ServerHello:
        """What was registered before is void at once: slots that are given from now on may be of another segment."""
        self._now = None
        hello = self._channel.hello("lmcache-sglang")
        if hello is None:
            raise LMCacheError("it does not answer as a server of this project does")
        offer = self._channel.register_worker(
            WorkerRegistration(self._instance_id, self._model_name, 1, 0, (self._layout,))
        )
        if not offer.shm_name:
            raise LMCacheError("the server refuses this engine's pages; its log says why")
        try:
            segment = self._segment(offer)
        except LMCacheError:
            self._channel.unregister_engine_driven(self._instance_id)
            raise
        self._now = Registration(segment, hello.chunk_tokens)
        logger.info("registered url=%s model=%s", self._settings.url, self._model_name)
        return hello

    def _segment(self, offer: SharedMemoryOffer) -> L1Segment:
        """Mapped once for each start of a server: that in the engine's process has lost its name by the next time."""
        mapped = self._mapped
        if mapped is not None and mapped.name == offer.shm_name.lstrip("/"):
            return mapped
        if mapped is not None:
            mapped.close()
        self._mapped = None
        self._mapped = L1Segment(offer.shm_name, offer.pool_size)
        return self._mapped
