"""A pool in an object store: an object for each slot, and one for the metadata.

NIXL can write, read and look for objects, but neither remove nor list them.  So a slot that is freed keeps its object, which
is overwritten by the next, and an empty one is a page of zeros.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_l2_nixl.nixl import borrowed
from lmcache_l2_nixl.pool_medium import PoolMedium
from lmcache_l2_nixl.pool_owner import PoolOwner
from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_object_slots import SlotGeometry

META_DEVICE: Final = 2**31
"""NIXL knows objects by numbers; those of slots are below."""
QUESTIONS_AT_ONCE: Final = 4
"""Whether an object is there NIXL asks while its thread waits; the lease is to be renewed between."""


class ObjectRegion:
    """A `MetaRegion` whose bytes are one object: a copy in memory, which `sync` writes whole.  Blocking; one thread at a
    time."""

    def __init__(self, thread: TransferThread, name: str, length: int, owner: PoolOwner) -> None:
        """Read what is there; zeros where nothing is.  Raises OSError."""
        self._owner: Final = owner
        self._thread: Final = thread
        self._place: Final = Extent(0, length, META_DEVICE, name)
        self._image: Final = OwnMemory(length)
        self._registration: Registration | None = None
        try:
            thread.call(self._register).result()
            self.is_new: Final = not thread.call(lambda agent: agent.exists(self._place)).result()
            if not self.is_new:
                self._move(writes=False)
        except BaseException:
            self.close()
            raise

    def read(self, offset: int, length: int) -> bytes:
        if offset + length > self._image.length:
            raise OSError(errno.ENODATA, f"the metadata ends at byte {self._image.length}")
        return self._image[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._image[offset : offset + len(data)] = data

    def sync(self) -> None:
        self._owner.require()
        self._move(writes=True)

    def close(self) -> None:
        """Call it when the pool is not used any more, and its agent still runs."""
        self._thread.call(self._deregister).result()
        self._image.close()

    def _move(self, *, writes: bool) -> None:
        memory = self._image.extent(0, self._image.length)
        self._thread.submit(Transfer(writes, memory, Segment.OBJECT, self._place)).result()

    def _register(self, agent: NixlAgent) -> None:
        self._image.register(agent)
        self._registration = agent.register(Segment.OBJECT, [self._place])

    def _deregister(self, agent: NixlAgent) -> None:
        self._image.deregister(agent)
        registration, self._registration = self._registration, None
        if registration is not None:
            agent.deregister(registration)


class ObjectPool(PoolMedium):
    """A `SlotMedium` of objects called `<prefix>slot-<number>`."""

    def __init__(
        self, geometry: SlotGeometry, thread: TransferThread, prefix: str, owner: PoolOwner, *, is_new: bool
    ) -> None:
        """`owner` has taken the pool, and is released when it is closed.  `is_new`: what this server did not write is not
        there, which saves a question for each slot."""
        super().__init__(geometry, thread, QUESTIONS_AT_ONCE)
        self._is_new = is_new
        self._owner = owner
        self._prefix = prefix
        self._written = bytearray(geometry.count)
        """1 where an object is known to be there."""
        self._registration: Registration | None = None

    async def take_places(self) -> None:
        places = [self._place(slot) for slot in range(self._geometry.count)]
        self._registration = await self._thread.do(lambda agent: agent.register(Segment.OBJECT, places))
        self._owner.keep()

    async def give_places_back(self) -> None:
        await self._owner.give_up()
        registration, self._registration = self._registration, None
        if registration is not None:
            await self._thread.do(lambda agent: agent.deregister(registration))

    async def has_header(self, slot: int) -> bool:
        # Asked first: of an object that is not there, NIXL would write the store's message into the memory.
        if self._is_new:
            return bool(self._written[slot])
        if not self._written[slot] and await self._thread.do(lambda agent: agent.exists(self._place(slot))):
            self._written[slot] = 1
        return bool(self._written[slot])

    async def write(self, slot: int, buffer: BorrowedBuffer) -> None:
        """The store shows an object when all of it is there: nothing has to come last."""
        self._owner.require()
        await self._thread.move(self.transfers(slot, 0, borrowed(buffer), writes=True))
        self._written[slot] = 1

    def transfers(self, slot: int, at: int, memory: Extent, *, writes: bool) -> Sequence[Transfer]:
        place = Extent(at, memory.length, slot)
        return (Transfer(writes, memory, Segment.OBJECT, place),)

    async def clear_header(self, slot: int) -> None:
        self._owner.require()
        await super().clear_header(slot)
        self._written[slot] = 1

    def _place(self, slot: int) -> Extent:
        return Extent(0, max(self._geometry.max_object_bytes, HEADER_BYTES), slot, f"{self._prefix}slot-{slot:08}")
