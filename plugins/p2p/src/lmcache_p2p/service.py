"""The service: a key pair, the sockets, the threads, and what the adapter finds its reader by."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import zmq

from lmcache_core import (
    Condition,
    ConfigError,
    HashChain,
    LMCacheError,
    ResourceError,
    Sample,
    SampleKind,
    ServerInfo,
    Service,
    ServiceContext,
    Severity,
    SystemClock,
    TransferChannel,
)
from lmcache_fleet.families import Family, vector_of
from lmcache_fleet.http_connection import HttpConnection, secured
from lmcache_p2p.coordinators import DIRECTORY_SHARE, Directory, Members
from lmcache_p2p.followed import Follower
from lmcache_p2p.handoffs import HandoffModule
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.messages import Hello
from lmcache_p2p.metrics import KINDS, LEASED, MEMBERS, owner_samples, reader_samples
from lmcache_p2p.owner import Owner
from lmcache_p2p.reader import READERS, Reader
from lmcache_p2p.settings import PLACES, PeerSettings, address_of, is_loopback

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
OLD_HEARTBEATS: Final = 6
"""After this number without an answer, the age of the list of members is a condition."""


class PeerService(Service):
    """Leases L1 to the other members of the fleet, and reads theirs for the adapter `p2p`."""

    sample_kinds: Sequence[SampleKind] = KINDS

    def __init__(self, settings: PeerSettings, context: ServiceContext) -> None:
        """Raises LMCacheError."""
        self._settings, self._context = settings, context
        if not context.value_at("coordinator_url"):
            raise ConfigError("--p2p-advertise-url has no effect without --coordinator-url; give both")
        self._keys = KeyPair.new()
        self._url = PeerUrl(settings.advertise_url, self._keys.public)
        self._heartbeat = float(context.value_at("coordinator_heartbeat_interval") or 5.0)
        self._members = Members(self._connections(), self._heartbeat)
        self._channels = self._open_channels()
        self._owner: Owner | None = None
        self._reader: Reader | None = None
        self._boot_id = ""
        module = context.modules.get("handoffs")
        self._handoffs = module if isinstance(module, HandoffModule) else None

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"p2p": str(self._url)}

    def start(self, server: ServerInfo) -> None:
        self._boot_id = server.boot_id
        name = str(self._context.value_at("hash_algorithm") or HashChain.BLAKE3.name)
        family = Family(server.chunk_tokens, HashChain.named(name))
        about = Hello(
            instance=server.instance_id,
            boot_id=server.boot_id,
            chunk_tokens=family.chunk_tokens,
            chain=name.lower(),
            test_vector=vector_of(family),
            lease_seconds=self._settings.lease_seconds,
        )
        max_bytes = int(self._context.region.length * self._settings.max_leased_ratio)
        clock = SystemClock()
        module = self._handoffs
        owner = Owner(self._context.storage, self._channels, about, self._members, max_bytes, clock, module)
        self._owner = owner
        try:
            owner.bind(self._settings.listen_url, self._keys)
        except zmq.ZMQError as error:
            raise ResourceError(
                f"--p2p-listen-url {self._settings.listen_url}: cannot be bound ({error}); give an address of this machine "
                "whose port is free"
            ) from None
        self._members.on_leave(owner.members_left)
        directory = Directory(self._connections(self._settings.lookup_timeout * DIRECTORY_SHARE), server.instance_id)
        named = self._members.named
        self._reader = Reader(directory, self._channels, about, self._keys, self._settings, clock, named)
        self._members.on_leave(self._reader.members_left)
        READERS[server.boot_id] = self._reader
        if module is not None:
            module.follower = Follower(self._reader, self._context.storage, module)

    def threads(self) -> Mapping[str, Callable[[], None]]:
        assert self._owner is not None, "after start()"
        assert self._reader is not None
        return {
            "members": self._members.follow,
            "owner": self._owner.run,
            "leases": self._owner.run_leases,
            "reader": self._reader.run,
        }

    def close(self) -> None:
        READERS.pop(self._boot_id, None)
        if self._handoffs is not None:
            self._handoffs.follower = None
        self._members.stop()
        if self._reader is not None:
            self._reader.stop()
        if self._owner is not None:
            self._owner.stop()
            self._owner.close(CLOSE_SECONDS)
        for channel in self._channels.values():
            channel.close(CLOSE_SECONDS)

    def status(self) -> Mapping[str, Any]:
        owner, reader = self._owner, self._reader
        return {
            "url": str(self._url),
            "members": self._members.count,
            "members_age_seconds": round(self._members.age_seconds, 1),
            "channels": sorted(self._channels),
            "leases": owner.leases if owner else 0,
            "leased_bytes": owner.leased_bytes if owner else 0,
            "owner": owner.counts_by_peer() if owner else {},
            "reader": reader.status() if reader else {},
        }

    def samples(self) -> Sequence[Sample]:
        owner, reader = self._owner, self._reader
        if owner is None or reader is None:
            return ()
        return [
            *reader_samples(reader.counts_by_peer()),
            *owner_samples(owner.counts_by_peer()),
            LEASED.of(owner.leased_bytes),
            MEMBERS.of(self._members.count),
        ]

    def conditions(self) -> Sequence[Condition]:
        found = []
        if (
            "tcp" in self._channels
            and self._context.value_at("p2p_plaintext")
            and not is_loopback(address_of(self._settings.listen_url).host)
        ):
            found.append(
                Condition(
                    "peers_plaintext",
                    Severity.INFO,
                    "the channel tcp sends chunks to other machines unencrypted, because --p2p-plaintext says so",
                    "Leave --p2p-plaintext away, here and at the other servers, unless the network is trusted.",
                )
            )
        age = self._members.age_seconds
        if age < OLD_HEARTBEATS * self._heartbeat or not self._members.why:
            return found
        return [
            *found,
            Condition(
                "peers_not_known",
                Severity.INFO,
                f"the list of peers is {age:.0f} s old, because no coordinator answers: {self._members.why}",
                "See whether a coordinator runs; until then the peers of the last list are let in.",
            ),
        ]

    def _connections(self, seconds: float | None = None) -> list[HttpConnection]:
        """To each coordinator."""
        at = self._context.value_at
        files = {name: at(f"coordinator_{name}") for name in ("token_file", "ca", "cert", "key")}
        return [secured(url, **files, seconds=seconds) for url in at("coordinator_url")]

    def _open_channels(self) -> dict[str, TransferChannel]:
        """Those that work here, the fastest first.  Raises LMCacheError where there are none, or not the one that is asked
        for."""
        wanted, offered = self._settings.transfer_engine, self._context.transfer_channels
        names = sorted(offered, key=lambda name: (PLACES.get(name, 1), name))
        host = address_of(self._settings.listen_url).host
        if wanted != "auto":
            if wanted not in names:
                raise ConfigError(f"--p2p-transfer-engine is '{wanted}', which no plugin offers: {', '.join(names)}")
            return {wanted: self._context.open_transfer_channel(wanted, host)}
        opened: dict[str, TransferChannel] = {}
        failures: list[LMCacheError] = []
        for name in names:
            try:
                opened[name] = self._context.open_transfer_channel(name, host)
            except LMCacheError as error:
                failures.append(error)
                logger.info("transfer channel is not used name=%s reason=%s", name, error)
        if not opened:
            raise failures[0] if failures else ConfigError("no plugin offers a transfer channel")
        return opened
