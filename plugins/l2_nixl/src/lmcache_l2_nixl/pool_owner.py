"""One server owns the pool in an object store while it runs."""

from __future__ import annotations

import asyncio
import errno
from typing import Final

from lmcache_core import AdapterContext, ResourceError
from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_object_remote import Ownership

OWNER_DEVICE: Final = 2**31 + 1
RECORD_BYTES: Final = 8192
"""NIXL does not say how long an object is: so all records are padded to one length."""
_PADDING: Final = b" "


class PoolRecords:
    """The owner's record as an object of one length; one that is only padding means no owner, since NIXL removes nothing.

    Once `sealed`, only what this server wrote last is replaced: a pool that another has had in the meantime is not taken
    back, because it holds other objects than this server believes."""

    def __init__(self, thread: TransferThread, name: str) -> None:
        """Raises OSError."""
        self._thread: Final = thread
        self._place: Final = Extent(0, RECORD_BYTES, OWNER_DEVICE, name)
        self._page: Final = OwnMemory(RECORD_BYTES)
        self._registration: Registration | None = None
        self._written: bytes | None = None
        self.sealed = False
        self.lost = False
        thread.call(self._register).result()

    async def read(self) -> bytes | None:
        # Not asked again of what was written: NIXL's thread waits for the answer, and all transfers with it.
        if self._written is None and not await self._thread.do(lambda agent: agent.exists(self._place)):
            return None
        self._page[0:RECORD_BYTES] = bytes(RECORD_BYTES)
        await self._move(writes=False)
        return self._page[0:RECORD_BYTES].rstrip(_PADDING) or None

    async def write(self, data: bytes, *, replaces: bytes | None) -> bool:
        if self.sealed and replaces != self._written:
            self.lost = True
            return False
        self._page[0:RECORD_BYTES] = data.ljust(RECORD_BYTES, _PADDING)
        await self._move(writes=True)
        self._written = data
        return True

    async def remove(self) -> None:
        self._page[0:RECORD_BYTES] = _PADDING * RECORD_BYTES
        await self._move(writes=True)

    def close(self) -> None:
        """Call it when the pool is not used any more, and its thread still runs."""
        self._thread.call(self._deregister).result()
        self._page.close()

    async def _move(self, *, writes: bool) -> None:
        memory = self._page.extent(0, RECORD_BYTES)
        await self._thread.move([Transfer(writes, memory, Segment.OBJECT, self._place)])

    def _register(self, agent: NixlAgent) -> None:
        self._page.register(agent)
        self._registration = agent.register(Segment.OBJECT, [self._place])

    def _deregister(self, agent: NixlAgent) -> None:
        self._page.deregister(agent)
        registration, self._registration = self._registration, None
        if registration is not None:
            agent.deregister(registration)


class PoolOwner:
    """Taken before the pool is read, renewed on the adapter's loop, released after the last write."""

    def __init__(
        self, context: AdapterContext, thread: TransferThread, name: str, place: str, lease_seconds: float
    ) -> None:
        """`name` is the record's.  Raises OSError."""
        self._place = place
        self._lease_seconds = lease_seconds
        self._log = context.logger
        self._records = PoolRecords(thread, name)
        self._ownership = Ownership(
            self._records, instance_id=context.instance_id, boot_id=context.boot_id, shared=False, clock=context.clock,
            lease_seconds=lease_seconds, place=place, logger=context.logger,
        )  # fmt: skip
        self._keeping: asyncio.Task[None] | None = None

    def take(self) -> None:
        """Blocking, for a twentieth of the lease, or a fifth where another server may have it.  Raises ResourceError where
        another server has it, or may have it still; OSError."""
        asyncio.run(self._ownership.take())
        if not self._ownership.held:
            raise ResourceError(
                f"{self._place}: its owner has not been heard of for a while, but may be alive; start again in "
                f"{self._lease_seconds:.0f} s, or give this server an object_prefix of its own"
            )
        self._records.sealed = True

    def require(self) -> None:
        """To be asked before each write.  Raises OSError where this server may not be the owner any more."""
        if self._records.lost or not self._ownership.held:
            raise OSError(errno.EPERM, f"{self._place}: this server does not own it at the moment; nothing is written")

    def keep(self) -> None:
        """On the adapter's loop: renew from now on."""
        self._keeping = asyncio.get_running_loop().create_task(self._ownership.keep())

    async def give_up(self) -> None:
        """Another may follow at once; where the store does not answer, when the lease is over."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        try:
            await self._ownership.give_up()
        except OSError as error:
            self._log.warning("%s: the owner's record stays until its lease is over: %s", self._place, error)

    def close(self) -> None:
        """The thread still runs."""
        self._records.close()
