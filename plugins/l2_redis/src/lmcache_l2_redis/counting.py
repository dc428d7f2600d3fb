"""How much there is, counted by asking for all names and their lengths; and what is left over is taken away."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, LMCacheError
from lmcache_l2_redis.client import Client
from lmcache_l2_redis.errors import ReplyError, WrongTypeError
from lmcache_l2_redis.pieces import TAG_BYTES, PieceName
from lmcache_l2_redis.replies import Reply, command
from lmcache_l2_redis.scan import scan
from lmcache_object_remote import Count, UsageCounter, object_id_of

RETRY_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 2.0
_ID_BYTES: Final = 16
_NO_END: Final = -1
"""What PTTL says of a name that does not expire."""


class Counting:
    """Keeps a usage_counter right.  Belongs to one event loop."""

    def __init__(
        self,
        client: Client,
        usage_counter: UsageCounter,
        prefix: str,
        logger: logging.Logger,
        *,
        every_seconds: float | None,
        may_clean_up: Callable[[], bool],
    ) -> None:
        """`every_seconds` None: only at the start, and when `count_soon` asks for it."""
        self._client: Final = client
        self._usage_counter: Final = usage_counter
        self._prefix: Final = prefix
        self._logger: Final = logger
        self._every: Final = every_seconds
        self._may_clean_up: Final = may_clean_up
        self._due: Final = asyncio.Event()

    def count_soon(self) -> None:
        """What is known may be wrong."""
        self._due.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        failing = False
        while True:
            self._due.clear()
            try:
                await self.count()
                failing = False
            except (OSError, ReplyError, LMCacheError) as error:
                if not failing:
                    self._logger.warning("what is stored cannot be counted, trying again: %s", error)
                failing = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(self._every):
                    await self._due.wait()
                    await asyncio.sleep(PAUSE_SECONDS)  # one count for all the doubts that come together
            except TimeoutError:
                pass

    async def count(self) -> None:
        """Once.  Raises what asking raises, and changes nothing then."""
        with self._usage_counter.counting() as count:
            listing = _Listing()
            async for names in scan(self._client.topology, self._prefix):
                await self._weigh(names, listing)
            listing.tell(count)
            count.finish()
        if listing.piece_names and self._may_clean_up():
            await self._clean_up(listing)

    async def _weigh(self, names: Sequence[str], listing: _Listing) -> None:
        ours = [name for name in names if object_id_of(name) is not None or PieceName.of(name) is not None]
        lengths = await asyncio.gather(*(self._ask(name, "STRLEN") for name in ours))
        for name, length in zip(ours, lengths, strict=True):
            if isinstance(length, int) and length:
                listing.saw(name, length)

    async def _clean_up(self, listing: _Listing) -> None:
        """Pieces whose object is gone, or is another one now.  One that is being written has an end."""
        for name, pieces in listing.piece_names.items():
            reply = await self._ask(name, "GETRANGE", HEADER_BYTES - TAG_BYTES, HEADER_BYTES - 1)
            tag = reply.hex() if isinstance(reply, bytes) else ""
            left = [piece for piece in pieces if (found := PieceName.of(piece)) and found.tag != tag]
            for piece in left:
                if await self._ask(piece, "PTTL") == _NO_END:
                    self._logger.info("removing what is left over of an object name=%s", piece)
                    await self._ask(piece, "UNLINK")

    async def _ask(self, name: str, verb: str, *arguments: int) -> Reply:
        """None where it is not a string."""
        key = name.encode()
        try:
            (reply,) = await self._client.ask(key, command(verb, key, *arguments))
        except WrongTypeError:
            return None
        return reply


class _Listing:
    """What was seen: 24 B for each object, and the names of pieces."""

    def __init__(self) -> None:
        self._ids: Final = bytearray()
        self._sizes: Final = array("Q")
        self._more: Final[defaultdict[str, int]] = defaultdict(int)
        self.piece_names: Final[defaultdict[str, set[str]]] = defaultdict(set)

    def saw(self, name: str, size: int) -> None:
        if (piece := PieceName.of(name)) is not None:
            if name not in self.piece_names[piece.name]:
                self.piece_names[piece.name].add(name)
                self._more[piece.name] += size
        elif (object_id := object_id_of(name)) is not None:
            self._ids.extend(object_id)
            self._sizes.append(size)

    def tell(self, count: Count) -> None:
        more = {object_id_of(name): size for name, size in self._more.items()}
        for number, size in enumerate(self._sizes):
            object_id = bytes(self._ids[number * _ID_BYTES : (number + 1) * _ID_BYTES])
            count.saw(object_id, size + more.get(object_id, 0))
