"""An agent that reads: which of this server's memory it knows, and which of its peers'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from lmcache_core import ChannelContext, LMCacheError
from lmcache_nixl_agent.agent import Extent, NixlAgent, Segment
from lmcache_nixl_agent.flights import Transfer
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_nixl_agent.ucx import open_ucx_agent
from lmcache_p2p_nixl import description
from lmcache_p2p_nixl.description import MARK_BYTES, SLOT_BYTES, Description, Span, unpacked
from lmcache_p2p_nixl.exposed import register_piece

SLOTS: Final = 256
"""Reads of tables that may be under way at a time."""
PUBLISH_SECONDS: Final = 2.0
"""How long a piece that was leased may take to be registered by its owner."""
ANSWER_SECONDS: Final = 5.0
"""How long the read of a slot may take."""
PAUSE_SECONDS: Final = 0.5e-3
PAUSE_SECONDS_MAX: Final = 20e-3


class ReadingAgent:
    """Belongs to one event loop.  `cut` ends it at once; `ended` or `close` is due either way."""

    def __init__(self, context: ChannelContext, number: int) -> None:
        """Blocks until NIXL has started.  Raises ResourceError where it is not available."""
        self.thread: Final = TransferThread(
            "p2p-nixl-reader", context.logger, lambda: open_ucx_agent(f"p2p-{context.boot_id}-{number}", context.host)
        )
        self._region: Final = context.region
        self.piece_bytes: Final = description.PIECE_BYTES
        self._lock: Final = asyncio.Lock()
        self._registered: set[int] = set()
        self._peers: dict[bytes, tuple[str, set[int]]] = {}
        """By what they gave: name, and pieces whose keys are known."""
        self._slots: Final = OwnMemory(SLOTS * SLOT_BYTES)
        self._free: Final = [number * SLOT_BYTES for number in range(SLOTS)]
        self._reading: Final[set[asyncio.Task[bytes]]] = set()
        self.thread.call(self._slots.register).result()

    async def register(self, pieces: Iterable[int]) -> None:
        """This server's memory, before it is read into.  Raises OSError."""
        async with self._lock:
            for piece in sorted(set(pieces) - self._registered):
                await self.thread.do(partial(register_piece, self._region, piece, self.piece_bytes))
                self._registered.add(piece)

    async def join(self, about: Description) -> None:
        """Connect to an owner, unless that was done.  Raises OSError."""
        async with self._lock:
            if about.agent not in self._peers:
                name = await self.thread.do(lambda agent: agent.add_peer(about.agent))
                self._peers[about.agent] = name, set()

    async def leave(self, about: Description, is_used: Callable[[], bool]) -> None:
        """Disconnect, unless it is used."""
        async with self._lock:
            if not is_used() and (peer := self._peers.pop(about.agent, None)) is not None:
                with suppress(OSError, RuntimeError):
                    await self.thread.do(lambda agent: agent.remove_peer(peer[0]))

    async def learn(self, about: Description, pieces: Iterable[int]) -> bool:
        """Get the keys of these pieces of a peer's memory.  False: it does not publish them in time.  Raises OSError."""
        _, known = self._peers[about.agent]
        until, pause = asyncio.get_running_loop().time() + PUBLISH_SECONDS, PAUSE_SECONDS
        for piece in sorted(set(pieces) - known):
            while (keys := unpacked(about.secret, piece, await self._peek(about, about.slot(piece)))) is None:
                if asyncio.get_running_loop().time() > until:
                    return False
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            await self.thread.do(partial(_load, keys))
            known.add(piece)
        return True

    async def check_open(self, about: Description) -> None:
        """Raises LMCacheError where the owner's channel is closed, OSError where it is not reached."""
        if (await self._peek(about, about.table))[:MARK_BYTES] != about.mark:
            raise LMCacheError("its channel is closed")

    def transfers(self, about: Description, parts: Sequence[Span]) -> list[Transfer]:
        name, _ = self._peers[about.agent]
        return [
            Transfer(
                False, Extent(self._region.address + part.own, part.length), Segment.MEMORY,
                Extent(about.address + part.remote, part.length), peer=name,
            )
            for part in parts
        ]  # fmt: skip

    def cut(self) -> None:
        """Everything that is under way fails, and nothing touches the region any more for it."""
        with suppress(RuntimeError):
            self.thread.cut()

    async def ended(self, seconds: float) -> bool:
        """After `cut`: True when its reads are over, and its thread, and it is closed."""
        if not await asyncio.get_running_loop().run_in_executor(None, self.thread.close, seconds):
            return False
        if self._reading:
            await asyncio.wait(self._reading)
        self._slots.close()
        return True

    def close(self, seconds: float) -> None:
        if self.thread.close(seconds):
            self._slots.close()

    async def _peek(self, about: Description, address: int) -> bytes:
        """A slot of its table.  Raises OSError, also where that takes too long: it goes on then, into a place that is not
        used for anything else meanwhile."""
        if not self._free:
            raise OSError("all places for keys are in use")
        name, _ = self._peers[about.agent]
        at = self._free.pop()
        reading = asyncio.create_task(self._read_slot(name, at, address))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        done, _ = await asyncio.wait((reading,), timeout=ANSWER_SECONDS)
        if not done:
            reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise OSError("its table of keys is not read in time")
        return reading.result()

    async def _read_slot(self, name: str, at: int, address: int) -> bytes:
        place = Extent(address, SLOT_BYTES)
        read = Transfer(False, self._slots.extent(at, SLOT_BYTES), Segment.MEMORY, place, peer=name)
        try:
            await self.thread.move([read])
            return self._slots[at : at + SLOT_BYTES]
        finally:
            self._free.append(at)


def _load(keys: bytes, agent: NixlAgent) -> None:
    agent.add_peer(keys)
