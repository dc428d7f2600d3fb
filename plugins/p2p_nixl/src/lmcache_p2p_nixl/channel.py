"""The transfer channel `nixl`: one-sided reads by NIXL and UCX, whose owner does nothing but register memory.

Leases are not kept apart: who has the keys of a piece can read all of it, until the owner closes its channel."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from lmcache_core import ChannelContext, CompletionQueue, ConfigError, JobTable, TransferChannel
from lmcache_p2p_nixl.description import Description
from lmcache_p2p_nixl.exposed import Exposed
from lmcache_p2p_nixl.reader import NixlRoute, Reader
from lmcache_p2p_nixl.settings import NixlChannelSettings


class NixlChannel(TransferChannel):
    keeps_apart = False

    def __init__(self, settings: NixlChannelSettings, context: ChannelContext) -> None:
        """Raises ConfigError where the settings do not say that all who reach the address are trusted, and for an address that
        is not of this machine; ResourceError where NIXL or UCX is not available."""
        try:
            ip_address(context.host)
        except ValueError:
            raise ConfigError(f"the channel nixl needs an IP address to listen at, and not '{context.host}'") from None
        if not settings.trusted_network:
            raise ConfigError(
                f"the channel nixl does not listen at {context.host}: UCX neither encrypts nor asks who connects, and a "
                "program that does can write to this process's memory; where all who reach it are trusted, give "
                '--offer-settings \'{"transfer_channel:nixl": {"trusted_network": true}}\''
            )
        self._exposed = Exposed(context)
        self._queue = CompletionQueue()
        try:
            self._reader = Reader(context, settings.load_timeout, JobTable(self._queue))
        except BaseException:
            self._exposed.close(1.0)
            raise

    def describe(self) -> bytes:
        return self._exposed.description

    def connect(self, description: bytes) -> NixlRoute:
        return self._reader.connect(Description.read(description))

    def expose(self, secret: bytes, extents: Sequence[tuple[int, int]]) -> None:
        self._exposed.expose(extents)

    def completions(self) -> CompletionQueue:
        return self._queue

    def close(self, deadline_seconds: float) -> None:
        self._reader.close(deadline_seconds)
        self._exposed.close(deadline_seconds)
