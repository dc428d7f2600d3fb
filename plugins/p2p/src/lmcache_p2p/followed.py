"""Hand-offs of other servers: these are asked how far they are, and what is stored there is pulled at once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, Protocol

from lmcache_client.handoff import COMPLETE, HANDOFF_SUBSCRIBE, HASH_BYTES, OPEN, UNKNOWN, HandoffState
from lmcache_core import LookupRequest, Shard, Storage
from lmcache_p2p.peer import PeerError
from lmcache_p2p.reader import Reader

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 1.0
"""How long the other server may wait for news before it answers: a server that is dead is noticed soon."""
PAUSE_SECONDS: Final = 0.02
"""After an answer without news."""
UNAWAITED_SECONDS: Final = 3.0
"""After this time without a request that waits for it, it is not followed any more."""
HELD_SECONDS: Final = 3.0
"""How long what was pulled is held for the lookup that comes when the hand-off is over."""
CONNECTION: Final = b"handoffs"
"""Under which pulls are lookups of the storage."""


class Handoffs(Protocol):
    """Who hears of it: the engines that wait for it."""

    @property
    def seconds(self) -> float: ...

    def heard(self, handoff_id: str, state: str, chunks: int) -> None: ...

    def cannot_read(self, reason: str) -> None: ...

    def is_awaited(self, handoff_id: str) -> bool: ...

    def over(self, handoff_id: str) -> None: ...


class Follower:
    """Of one server.  Any thread.

    Pulls are lookups of this server's storage for the chunks that are new.  So they wait for free space like any other
    lookup, and the room is made here; objects come through the adapter `p2p` and are compared there.  What is pulled is
    temporary where the prefetch policy does not retain it: it leaves L1 with its last reader, once it is not held here."""

    def __init__(self, reader: Reader, storage: Storage, handoffs: Handoffs) -> None:
        self.reader, self.storage, self.handoffs = reader, storage, handoffs
        self.numbers = itertools.count()
        """Of pulls."""

    def start(
        self,
        handoff_id: str,
        server: str,
        known: int,
        world_size: int,
        shards: tuple[Shard, ...],
        hashes: Sequence[bytes],
    ) -> bool:
        """`server` has the hand-off.  `hashes`: those of the prompt that waits for it, at an engine of this world size.
        `known`: the count to begin with; -1 waits for the hand-off to be opened.  False: nothing is followed.  Otherwise
        `Handoffs.over` is called."""
        followed = _Followed(self, handoff_id, server, known, world_size, shards, hashes)
        return self.reader.start(followed.run)


class _Followed:
    """One of them.  Belongs to the reader's loop."""

    def __init__(
        self,
        of: Follower,
        handoff_id: str,
        server: str,
        known: int,
        world_size: int,
        shards: tuple[Shard, ...],
        hashes: Sequence[bytes],
    ) -> None:
        self._reader, self._storage, self._handoffs, self._numbers = of.reader, of.storage, of.handoffs, of.numbers
        self._id, self._server, self._known = handoff_id, server, known
        self._world_size, self._shards, self._hashes = world_size, shards, hashes
        self._pulls: list[str] = []

    async def run(self) -> None:
        try:
            try:
                await self._follow()
            except PeerError as error:
                logger.info("a hand-off is not followed server=%s reason=%s", self._server[:64], error)
            finally:
                self._handoffs.over(self._id)
            if self._pulls:
                await asyncio.sleep(HELD_SECONDS)
        finally:
            for pull in self._pulls:
                self._storage.end_lookup(CONNECTION, pull)

    async def _follow(self) -> None:
        """Until it is over, nothing is new for too long, or its prompt turns out to be another.  Raises PeerError."""
        self._reader.hints.add(self._hashes[: max(0, self._known)], self._server, self._handoffs.seconds)
        known, seconds = self._known, 0.0 if self._known >= 0 else ROUND_SECONDS
        heard_at = awaited_at = time.monotonic()
        while True:
            news = await self._reader.ask(self._server, HANDOFF_SUBSCRIBE, self._id, known, seconds, seconds=seconds)
            now = time.monotonic()
            if self._handoffs.is_awaited(self._id):
                awaited_at = now
            is_over = news.state not in (OPEN, UNKNOWN) or (news.state == UNKNOWN and known >= 0)
            is_first, seconds = seconds == 0.0, ROUND_SECONDS
            if is_over or is_first or (news.state == OPEN and news.chunks > known):
                heard_at = now
                if news.world_size not in (0, self._world_size):
                    logger.info(
                        "a hand-off is not followed server=%s reason=world_size there=%d here=%d",
                        self._server[:64],
                        news.world_size,
                        self._world_size,
                    )
                    self._handoffs.cannot_read("world_size")
                    return
                if not self._pull(max(0, known), news):
                    return
                if news.state in (OPEN, COMPLETE):
                    known = news.chunks
                    self._handoffs.heard(self._id, news.state, known)
            else:
                await asyncio.sleep(PAUSE_SECONDS)
            if is_over or now - awaited_at > UNAWAITED_SECONDS or now - heard_at > self._handoffs.seconds:
                return

    def _pull(self, first: int, news: HandoffState) -> bool:
        """Begin to pull what is new and of this prompt.  False: not all of it is."""
        new = [news.hashes[at : at + HASH_BYTES] for at in range(0, len(news.hashes), HASH_BYTES)]
        wanted = self._hashes[first : first + len(new)]
        alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(new, wanted, strict=False))))
        if alike:
            self._reader.hints.add(wanted[:alike], self._server, self._handoffs.seconds)
            pull = f"{self._id}/{next(self._numbers)}"
            self._storage.lookup(LookupRequest(CONNECTION, pull, self._shards, wanted[:alike], 1))
            self._pulls.append(pull)
        return alike == len(new)
