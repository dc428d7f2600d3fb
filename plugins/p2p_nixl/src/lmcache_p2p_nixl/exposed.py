"""The owner's side: an agent that others read through, and the table of the keys."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import msgspec

from lmcache_core import ChannelContext, MemoryRegion, ResourceError
from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment
from lmcache_nixl_agent.own_memory import OwnMemory
from lmcache_nixl_agent.transfers import TransferThread
from lmcache_nixl_agent.ucx import open_ucx_agent
from lmcache_p2p_nixl import description
from lmcache_p2p_nixl.description import (
    DESCRIPTION_BYTES_MAX,
    MARK_BYTES,
    SLOT_BYTES,
    Description,
    packed,
    pieces_of,
)


class Exposed:
    """This server's memory, as others may read it.  Safe from any thread."""

    def __init__(self, context: ChannelContext) -> None:
        """Raises ResourceError where NIXL or UCX is not available, and ConfigError for an address that is none of this
        machine's."""
        self._region: Final = context.region
        self._log: Final = context.logger
        self._piece_bytes: Final = description.PIECE_BYTES
        self._asked: set[int] = set()
        """Pieces that are registered, or will be."""
        self._closed = False
        self._thread = TransferThread(
            "p2p-nixl-owner", context.logger, lambda: open_ucx_agent(f"p2p-{context.boot_id}", context.host)
        )
        pieces = len(pieces_of(0, self._region.length, self._piece_bytes))
        self._table = OwnMemory((pieces + 1) * SLOT_BYTES)
        mark, self._secret = secrets.token_bytes(MARK_BYTES), secrets.token_bytes(32)
        self._table[0:MARK_BYTES] = mark
        try:
            agent = self._thread.call(self._registered_table).result()
            self.description: Final = msgspec.msgpack.encode(
                Description(
                    agent, self._region.address, self._region.length, self._piece_bytes, self._table.address, mark,
                    self._secret,
                )
            )  # fmt: skip
            if len(self.description) > DESCRIPTION_BYTES_MAX:
                raise ResourceError(
                    f"NIXL describes this server in {len(agent)} bytes, which are too many; name one network device in "
                    "UCX_NET_DEVICES"
                )
        except BaseException:
            self.close(0.0)
            raise

    def expose(self, extents: Sequence[tuple[int, int]]) -> None:
        """Has the pieces registered and published that these lie in."""
        wanted = {piece for extent in extents for piece in pieces_of(*extent, self._piece_bytes)}
        for piece in sorted(wanted - self._asked):
            self._asked.add(piece)
            try:
                self._thread.call(partial(self._publish, piece)).add_done_callback(partial(self._published, piece))
            except RuntimeError:
                return  # it is closed

    def close(self, seconds: float) -> None:
        """Readers fail from here on, and when it has returned, the memory is not registered any more.  Calling it again does
        nothing."""
        if self._closed:
            return
        self._closed = True
        self._table[0:MARK_BYTES] = bytes(MARK_BYTES)
        if self._thread.close(seconds):
            self._table.close()

    def _published(self, piece: int, ended: Future[None]) -> None:
        if (error := ended.exception()) is not None:
            self._asked.discard(piece)  # the next lease tries again
            self._log.warning("a piece of L1 was not registered with nixl piece=%d error=%s", piece, error)

    # --- on the transfer thread

    def _registered_table(self, agent: NixlAgent) -> bytes:
        registration = agent.register(Segment.MEMORY, [self._table.extent(0, self._table.length)])
        return agent.metadata_of(registration, connects=True)

    def _publish(self, piece: int, agent: NixlAgent) -> None:
        registration = register_piece(self._region, piece, self._piece_bytes, agent)
        slot = packed(self._secret, piece, agent.metadata_of(registration, connects=False))
        self._table[(piece + 1) * SLOT_BYTES : (piece + 1) * SLOT_BYTES + len(slot)] = slot


def register_piece(region: MemoryRegion, piece: int, piece_bytes: int, agent: NixlAgent) -> Registration:
    """The last one is shorter.  Raises OSError."""
    at = piece * piece_bytes
    return agent.register(Segment.MEMORY, [Extent(region.address + at, min(piece_bytes, region.length - at))])
