"""Which peers have objects, and leases of them there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import zmq.asyncio

from lmcache_core import ObjectKey, TransferChannel
from lmcache_p2p.coordinators import DIRECTORY_SHARE, Directory, Hints, Member
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.messages import END, LOOKUP_AND_LOCK, NO_TASK, NOT_NOW, QUERY_LOOKUP_RESULTS, RENEW, Hello, PeerKey
from lmcache_p2p.peer import HeldLease, Peer, PeerError, Pin
from lmcache_p2p.settings import PeerSettings, address_of

ATTEMPTS: Final = 2
"""Owners that are tried for one object."""
LEAST_SHARE: Final = 0.2
"""Of the time that peers have to answer a lookup: with less than that left, no other one is asked."""
RENEWALS_PER_LEASE: Final = 3
REJECTED_SECONDS: Final = 60.0
"""So long an object is not asked of a peer whose bytes were wrong."""
REJECTED_MAX: Final = 4096
"""Objects for which that counts.  Beyond, the oldest is asked for again."""
ALL: Final = b""
"""In place of a peer's key."""


class Lessee:
    """Belongs to the reader's loop, but for what says otherwise."""

    def __init__(
        self,
        directory: Directory,
        channels: Mapping[str, TransferChannel],
        about: Hello,
        keys: KeyPair,
        settings: PeerSettings,
        named: Callable[[str], Member | None],
        keep: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        """`named` finds members by their names.  `keep` runs something to its end."""
        self._directory, self._channels, self._about, self._named = directory, channels, about, named
        self._keys, self._settings, self._keep = keys, settings, keep
        self._asking = ThreadPoolExecutor(1, "p2p-directory")
        self.context: zmq.asyncio.Context | None = None
        """Made on the loop."""
        self.hints = Hints()
        self.peers: dict[bytes, Peer] = {}
        """By public key."""
        self.leases: set[HeldLease] = set()
        self._rejected: dict[ObjectKey, dict[bytes, float]] = {}
        """By peer: since when.  In the order in which they came."""
        self._probing: asyncio.Task[Any] | None = None

    def open(self) -> None:
        self.context = zmq.asyncio.Context()

    def disconnect(self) -> None:
        for peer in self.peers.values():
            peer.close()

    def close(self) -> None:
        """Once nothing runs on the loop any more."""
        if self.context is not None:
            self.context.destroy(0)
        self._asking.submit(self._directory.close)  # behind what that thread asks now
        self._asking.shutdown(wait=False)

    def forget(self, keys: Collection[bytes]) -> None:
        """These are members no more."""
        for key in keys & self.peers.keys():
            self.peers.pop(key).close()

    def peer_of(self, member: Member) -> Peer:
        peer = self.peers.get(member.url.key)
        if peer is None:
            self.forget([key for key, other in self.peers.items() if other.name == member.instance])  # it started anew
            self._named(
                member.instance
            )  # where the list of members does not have it yet, the coordinator is asked soon
            assert self.context is not None, "on the loop"
            seconds = self._settings.lookup_timeout
            peer = Peer(member, self.context, self._keys, self._about, self._channels, seconds)
            self.peers[member.url.key] = peer
        return peer

    async def lease(self, keys: Sequence[ObjectKey], tried: Sequence[Collection[bytes]]) -> list[Pin | None]:
        """Of each key, a lease at one of its owners, for `drop`.  `tried`: of each key, the public keys of peers that are not
        asked for it.  What is leased after the time for lookups is given back at once."""
        pins: list[Pin | None] = [None] * len(keys)
        until = time.monotonic() + self._settings.lookup_timeout
        refused = [set(peers) | self._rejected_at(key) for key, peers in zip(keys, tried, strict=True)]
        owners = self._hinted(keys, refused)
        hinted = [place for place, members in enumerate(owners) if members]
        await self._fill(owners, keys, [place for place, members in enumerate(owners) if not members])
        peers_left = self._settings.peers_per_lookup
        for attempt in range(ATTEMPTS):
            if attempt:
                await self._fill(owners, keys, [place for place in hinted if pins[place] is None])
            seconds = until - time.monotonic()
            shares = self._shares(owners, pins, refused, peers_left)
            if not shares or seconds < LEAST_SHARE * self._settings.lookup_timeout:
                break
            peers_left -= len(shares)
            asked = [self._keep(self._lease_at(peer, keys, places)) for peer, places in shares]
            await asyncio.wait(asked, timeout=seconds)
            for task, (peer, places) in zip(asked, shares, strict=True):
                if task.done():
                    for place, pin in task.result().items():
                        pins[place] = pin
                else:
                    peer.is_late()
                    task.add_done_callback(self._drop_all)
                for place in places:
                    refused[place].add(peer.member.url.key)
        return pins

    def drop(self, pin: Pin) -> None:
        lease = pin.lease
        lease.pins -= 1
        if lease.pins == 0:
            self.leases.discard(lease)
            if lease.session == lease.peer.session:
                self._keep(self._end(lease))

    def reject(self, key: ObjectKey, peer: Peer | None) -> None:
        """What this peer sent was not this object: another is asked for it for a while.  None: it is not known who it was, and
        none is asked."""
        if peer is None and key in self._rejected:
            return  # it is known
        self._rejected.setdefault(key, {})[peer.member.url.key if peer else ALL] = time.monotonic()
        if len(self._rejected) > REJECTED_MAX:
            del self._rejected[next(iter(self._rejected))]
        if peer is not None:
            self._directory.found_at(peer.name, 0, 1)

    def _rejected_at(self, key: ObjectKey) -> set[bytes]:
        if not (peers := self._rejected.get(key)):
            return set()
        since = time.monotonic() - REJECTED_SECONDS
        left = {peer: at for peer, at in peers.items() if at > since}
        if left:
            self._rejected[key] = left
        else:
            del self._rejected[key]
        return set(left)

    # --- whom to ask

    def _hinted(self, keys: Sequence[ObjectKey], refused: Sequence[Collection[bytes]]) -> list[tuple[Member, ...]]:
        """Of each key, the peer that hands it over, as long as that answers."""
        owners: list[tuple[Member, ...]] = [()] * len(keys)
        named: dict[str, Member | None] = {}
        for place, key in enumerate(keys if self.hints.count_now else ()):
            if instance := self.hints.peer_of(key):
                if instance not in named:
                    named[instance] = self._named(instance)
                member = named[instance]
                if member is not None and member.url.key not in refused[place] and self.peer_of(member).is_open:
                    owners[place] = (member,)
        return owners

    async def _fill(self, owners: list[tuple[Member, ...]], keys: Sequence[ObjectKey], places: Sequence[int]) -> None:
        """With what the directory says of these, which is nothing where it does not say it soon."""
        if not places or self._directory.is_quiet:
            return
        loop, asked = asyncio.get_running_loop(), [keys[place] for place in places]
        asking = loop.run_in_executor(self._asking, self._directory.owners, asked)
        try:
            found = await asyncio.wait_for(asking, self._settings.lookup_timeout * DIRECTORY_SHARE)
        except TimeoutError:
            self._directory.is_late()
        else:
            for place, members in zip(places, found, strict=True):
                owners[place] = members
        self._probe_if_quiet()

    def _probe_if_quiet(self) -> None:
        if self._directory.is_quiet and (self._probing is None or self._probing.done()):
            self._probing = self._keep(self._probe())

    async def _probe(self) -> None:
        """Lookups go without the directory meanwhile."""
        while self._directory.is_quiet:
            await asyncio.sleep(self._directory.pause_seconds)
            await asyncio.get_running_loop().run_in_executor(self._asking, self._directory.probe)

    def _shares(
        self,
        owners: Sequence[Sequence[Member]],
        pins: Sequence[Pin | None],
        refused: Sequence[Collection[bytes]],
        peers_max: int,
    ) -> list[tuple[Peer, list[int]]]:
        """Whom to ask for what: peers on this machine first, then the one with the longest run from the first missing object,
        then the one with the fewest bytes in flight."""
        open_to: dict[bytes, list[int]] = {}
        for place, members in enumerate(owners):
            if pins[place] is None and ALL not in refused[place]:
                for member in members:
                    key = member.url.key
                    if key not in refused[place] and self.peer_of(member).is_open:
                        open_to.setdefault(key, []).append(place)
        shares: list[tuple[Peer, list[int]]] = []
        missing = {place for places in open_to.values() for place in places}
        while missing and len(shares) < peers_max:
            best = max(open_to, key=lambda key: self._rank(self.peers[key], open_to[key], missing))
            places = [place for place in open_to.pop(best) if place in missing]
            if places:
                shares.append((self.peers[best], places))
                missing -= set(places)
        return shares

    def _rank(self, peer: Peer, places: Sequence[int], missing: Collection[int]) -> tuple[bool, int, int]:
        is_here = address_of(peer.member.url.endpoint).host == address_of(self._settings.advertise_url).host
        return is_here, _run(places, missing), -peer.bytes_in_flight

    # --- one peer

    async def _lease_at(self, peer: Peer, keys: Sequence[ObjectKey], places: Sequence[int]) -> dict[int, Pin]:
        """Of these places, those that it leases.  It has as long as any peer, however little is left to the lookup, and however
        long it took to connect to it."""
        peer.counts["asked"] += len(places)
        answered = 0
        try:
            await peer.connect(self._settings.lookup_timeout)
            asked = time.monotonic()
            until = asked + self._settings.lookup_timeout
            wanted = [PeerKey.of(keys[place]) for place in places]
            number = await peer.ask(LOOKUP_AND_LOCK, wanted, {}, seconds=max(0.001, until - time.monotonic()))
            if number == NO_TASK:
                answered = len(places)
                peer.counts["refused"] += answered
                if not any(lease.peer is peer for lease in self.leases):
                    peer.disconnect()  # it may have forgotten the session: its list of members lacked this server for a while
                return {}
            lease = HeldLease(peer, peer.session, number, asked - time.monotonic() + self._about.lease_seconds)
            addresses = None
            while addresses is None:
                seconds = until - time.monotonic()
                if seconds <= 0:
                    raise peer.failed("its lookup took too long")
                addresses = await peer.ask(QUERY_LOOKUP_RESULTS, number, seconds=seconds)
            if len(addresses) != len(places):
                peer.counts["bad"] += 1
                raise peer.failed(f"{len(addresses)} addresses of {len(places)} objects")
            answered = len(places)
        except PeerError:
            return {}
        finally:
            peer.counts["unanswered"] += len(places) - answered
        pins: dict[int, Pin] = {}
        for place, address in zip(places, addresses, strict=True):
            if address.size > 0 and address.offset >= 0:
                lease.pins += 1
                pins[place] = Pin(lease, address)
        peer.counts["leased"] += lease.pins
        not_now = {place for place, address in zip(places, addresses, strict=True) if address.offset == NOT_NOW}
        absent = [place for place in places if place not in pins and place not in not_now]
        peer.counts["refused"] += len(not_now)
        peer.counts["stale"] += len(absent)
        said = [place for place in places if place not in not_now and self.hints.peer_of(keys[place]) != peer.name]
        if said:  # by the directory
            self._directory.found_at(peer.name, len(said), sum(place not in pins for place in said))
        self.hints.end([keys[place] for place in absent], peer.name)
        if lease.pins:
            self.leases.add(lease)
            self._keep(self._renew(lease))
        return pins

    async def _renew(self, lease: HeldLease) -> None:
        """Until it is not needed, or is lost."""
        period = self._about.lease_seconds / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(period)
            if not lease.pins or lease.session != lease.peer.session:
                self.leases.discard(lease)
                return
            asked = time.monotonic()
            try:
                if await lease.peer.ask(RENEW, lease.number, seconds=period):
                    lease.ends_at = asked + self._about.lease_seconds
                    continue
            except PeerError:
                pass
            self.leases.discard(lease)
            return

    def _drop_all(self, leased: asyncio.Task[dict[int, Pin]]) -> None:
        if not leased.cancelled() and leased.exception() is None:
            for pin in leased.result().values():
                self.drop(pin)

    async def _end(self, lease: HeldLease) -> None:
        with contextlib.suppress(PeerError):
            await lease.peer.ask(END, lease.number, seconds=self._settings.lookup_timeout)


def _run(places: Sequence[int], missing: Collection[int]) -> int:
    """How many of the missing, from the first on, are among these."""
    own = set(places)
    run = 0
    for place in sorted(missing):
        if place not in own:
            break
        run += 1
    return run
