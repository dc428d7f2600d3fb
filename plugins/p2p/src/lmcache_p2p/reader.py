"""The reader's side: finds out which peers have objects, leases them there, and reads them.

Everything here runs on one event loop, on the thread whose body is `run`.  The adapter calls in from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import zmq.asyncio

from lmcache_core import Clock, FaultLog, LoadItem, ObjectKey, Operation, Outcome, TransferChannel
from lmcache_p2p.coordinators import Directory, Hints, Member
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.messages import END, LOOKUP_AND_LOCK, NO_TASK, NOT_NOW, QUERY_LOOKUP_RESULTS, RENEW, Hello, PeerKey
from lmcache_p2p.peer import HeldLease, Peer, PeerError, Pin
from lmcache_p2p.settings import PeerSettings, address_of
from lmcache_p2p.transfers import Transfers

logger = logging.getLogger(__name__)

READERS: Final[dict[str, Reader]] = {}
"""Of the servers of this process, by boot id: where adapters find theirs."""
ATTEMPTS: Final = 2
"""Owners that are tried for one object."""
RENEWALS_PER_LEASE: Final = 3
MEMBER_POLL_SECONDS: Final = 0.05


class Reader:
    """`lookup`, `load`, `unpin`, `missed`, `ask` and `hints` belong to its loop, the rest to any thread."""

    def __init__(
        self,
        directory: Directory,
        channels: Mapping[str, TransferChannel],
        about: Hello,
        keys: KeyPair,
        settings: PeerSettings,
        clock: Clock,
        named: Callable[[str], Member | None] = lambda instance: None,
    ) -> None:
        """`named` finds members by their names."""
        self._directory, self._channels, self._about, self._named = directory, channels, about, named
        self._keys, self._settings = keys, settings
        self._faults = FaultLog(logger, clock, "service=p2p")
        self.loop = asyncio.new_event_loop()
        self._asking = ThreadPoolExecutor(1, "p2p-directory")
        self._transfers = Transfers(self.loop, channels)
        self._peers: dict[bytes, Peer] = {}
        """By public key."""
        self._context: zmq.asyncio.Context | None = None
        self.hints = Hints()
        self._pins: dict[ObjectKey, list[Pin]] = {}
        self._leases: set[HeldLease] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._stopped = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._run())
        finally:
            if self._stopped.is_set():
                self._asking.shutdown(wait=False, cancel_futures=True)
                self._transfers.shutdown()
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
                self.loop.close()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self._stopped.set)

    def status(self) -> Mapping[str, Any]:
        return {
            "directory_asked": self._directory.asked,
            "pinned": len(self._pins),
            "leases": len(self._leases),
            "counts": dict(self.counts),
            "peers": {
                peer.name: {"channel": peer.channel, "open": peer.is_open, **peer.counts}
                for peer in list(self._peers.values())
            },
        }

    def counts_by_peer(self) -> dict[str, dict[str, float]]:
        return {peer.name: dict(peer.counts) for peer in list(self._peers.values())}

    @property
    def finds_nothing(self) -> bool:
        """Any thread: no lookup finds anything now, because no coordinator answers, and no peer hands anything over."""
        return self._directory.is_quiet and not self.hints.count_now

    def missed(self, count: int) -> None:
        """Count keys that were not looked up for that reason."""
        self.counts["requested"] += count
        self.counts["missed"] += count

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Let it run to its end."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Run it on the loop.  False where that has ended."""
        try:
            self.loop.call_soon_threadsafe(lambda: self.keep(self.loop.create_task(work())))
        except RuntimeError:
            return False
        return True

    # --- one peer by its name

    async def ask(self, instance: str, operation: Operation, *payload: Any, seconds: float) -> Any:
        """The answer of the member with this name, which may take `seconds` longer than others.  Raises PeerError."""
        until = time.monotonic() + self._settings.lookup_timeout
        while (member := self._named(instance)) is None:  # the coordinator may name it yet
            if time.monotonic() >= until:
                raise PeerError(f"no member is called {instance[:64]}")
            await asyncio.sleep(MEMBER_POLL_SECONDS)
        peer = self._peer(member)
        if not peer.is_open:
            raise PeerError(f"peer {peer.name} has failed a moment ago")
        await peer.connect(self._settings.lookup_timeout)
        return await peer.ask(operation, *payload, seconds=seconds + self._settings.lookup_timeout)

    # --- verbs

    async def lookup(self, keys: Sequence[ObjectKey]) -> list[Outcome]:
        """DONE for what a peer has leased: pinned until `unpin`."""
        found = await self._lease(keys, set())
        for key, pin in zip(keys, found, strict=True):
            if pin is not None:
                self._pins.setdefault(key, []).append(pin)
                pin.lease.peer.counts["hit"] += 1
        self.counts["requested"] += len(keys)
        hits = sum(pin is not None for pin in found)
        self.counts["hit"] += hits
        self.counts["missed"] += len(keys) - hits
        return [Outcome.MISSING if pin is None else Outcome.DONE for pin in found]

    async def load(self, items: Sequence[LoadItem], report: Any) -> list[Outcome]:
        """Read into these buffers, which are not touched any more when it returns.  `report(place, outcome)` is called for
        one whose lease ends first."""
        outcomes = [Outcome.MISSING] * len(items)
        tried: list[set[bytes]] = [set() for _ in items]
        places = list(range(len(items)))
        for attempt in range(ATTEMPTS):
            pins = await self._pins_of(items, places, tried, attempt)
            groups: dict[HeldLease, list[int]] = {}
            for place in places:
                if (pin := pins.get(place)) is not None:
                    groups.setdefault(pin.lease, []).append(place)
                    tried[place].add(pin.lease.peer.member.url.key)
            try:
                await asyncio.gather(
                    *(
                        self._transfers.read(lease, items, part, pins, outcomes, report)
                        for lease, part in groups.items()
                    )
                )
            finally:
                for pin in pins.values():
                    self._drop(pin)
            places = [place for place in places if place in pins and outcomes[place] is not Outcome.DONE]
            if not places:
                break
        return outcomes

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            if pins := self._pins.get(key):
                self._drop(pins.pop())
                if not pins:
                    del self._pins[key]

    def unpin_all(self) -> None:
        self.unpin([key for key, pins in list(self._pins.items()) for _ in list(pins)])

    # --- leases

    async def _pins_of(
        self, items: Sequence[LoadItem], places: Sequence[int], tried: Sequence[Collection[bytes]], attempt: int
    ) -> dict[int, Pin]:
        """What there is to read from, for `_drop`: of the first attempt what a lookup has pinned, afterwards another owner."""
        pins: dict[int, Pin] = {}
        if attempt == 0:
            for place in places:
                live = [pin for pin in self._pins.get(items[place].key, ()) if pin.lease.is_live]
                if live:
                    pins[place] = live[-1]
                    live[-1].lease.pins += 1  # `unpin` may come before the bytes have
        rest = [place for place in places if place not in pins]
        if rest and (attempt or len(rest) == len(places)):
            excluded = set[bytes]().union(*(tried[place] for place in rest))
            found = await self._lease([items[place].key for place in rest], excluded)
            pins |= {place: pin for place, pin in zip(rest, found, strict=True) if pin is not None}
        return pins

    async def _lease(self, keys: Sequence[ObjectKey], excluded: Collection[bytes]) -> list[Pin | None]:
        """Of each key, a lease at one of its owners."""
        pins: list[Pin | None] = [None] * len(keys)
        until = time.monotonic() + self._settings.lookup_timeout
        owners = await self._owners(keys, excluded)
        refused: list[set[bytes]] = [set(excluded) for _ in keys]
        peers_left = self._settings.peers_per_lookup
        for _ in range(ATTEMPTS):
            seconds = until - time.monotonic()
            if seconds <= 0:
                break
            shares = self._shares(owners, pins, refused, peers_left)
            if not shares:
                break
            peers_left -= len(shares)
            await asyncio.gather(*(self._lease_at(peer, keys, places, pins, seconds) for peer, places in shares))
            for peer, places in shares:
                for place in places:
                    refused[place].add(peer.member.url.key)
        return pins

    async def _owners(self, keys: Sequence[ObjectKey], excluded: Collection[bytes]) -> list[tuple[Member, ...]]:
        """Of each key, the peer that hands it over, as long as that answers; otherwise those that the directory names."""
        owners: list[tuple[Member, ...]] = [()] * len(keys)
        named: dict[str, tuple[Member, ...]] = {}
        for place, key in enumerate(keys if self.hints.count_now else ()):
            if instance := self.hints.peer_of(key):
                if instance not in named:
                    named[instance] = self._answering(instance, excluded)
                owners[place] = named[instance]
        rest = [place for place, members in enumerate(owners) if not members]
        if rest:
            asked = [keys[place] for place in rest]
            found = await self.loop.run_in_executor(self._asking, self._directory.owners, asked)
            for place, members in zip(rest, found, strict=True):
                owners[place] = members
        return owners

    def _answering(self, instance: str, excluded: Collection[bytes]) -> tuple[Member, ...]:
        """The member with this name, unless it is among the excluded public keys or failed a moment ago."""
        member = self._named(instance)
        if member is None or member.url.key in excluded or not self._peer(member).is_open:
            return ()
        return (member,)

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
            if pins[place] is None:
                for member in members:
                    key = member.url.key
                    if key not in refused[place] and self._peer(member).is_open:
                        open_to.setdefault(key, []).append(place)
        shares: list[tuple[Peer, list[int]]] = []
        missing = {place for places in open_to.values() for place in places}
        while missing and len(shares) < peers_max:
            best = max(open_to, key=lambda key: self._rank(self._peers[key], open_to[key], missing))
            places = [place for place in open_to.pop(best) if place in missing]
            if places:
                shares.append((self._peers[best], places))
                missing -= set(places)
        return shares

    def _rank(self, peer: Peer, places: Sequence[int], missing: Collection[int]) -> tuple[bool, int, int]:
        is_here = address_of(peer.member.url.endpoint).host == address_of(self._settings.advertise_url).host
        return is_here, _run(places, missing), -peer.bytes_in_flight

    def _peer(self, member: Member) -> Peer:
        peer = self._peers.get(member.url.key)
        if peer is None:
            for key in [key for key, other in self._peers.items() if other.name == member.instance]:
                self._peers.pop(key).disconnect()  # it has started anew
            assert self._context is not None, "on the loop"
            peer = Peer(member, self._context, self._keys, self._about, self._channels)
            self._peers[member.url.key] = peer
        return peer

    async def _lease_at(
        self, peer: Peer, keys: Sequence[ObjectKey], places: Sequence[int], pins: list[Pin | None], seconds: float
    ) -> None:
        until = time.monotonic() + seconds
        peer.counts["asked"] += len(places)
        answered = 0
        try:
            await peer.connect(seconds)
            asked = time.monotonic()
            wanted = [PeerKey.of(keys[place]) for place in places]
            number = await peer.ask(LOOKUP_AND_LOCK, wanted, {}, seconds=max(0.001, until - time.monotonic()))
            if number == NO_TASK:
                answered = len(places)
                peer.counts["refused"] += answered
                if not any(lease.peer is peer for lease in self._leases):
                    peer.disconnect()  # it may have forgotten the session: its list of members lacked this server for a while
                return
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
            return
        finally:
            peer.counts["unanswered"] += len(places) - answered
        for place, address in zip(places, addresses, strict=True):
            if address.size > 0 and address.offset >= 0:
                lease.pins += 1
                pins[place] = Pin(lease, address)
        peer.counts["leased"] += lease.pins
        not_now = {place for place, address in zip(places, addresses, strict=True) if address.offset == NOT_NOW}
        peer.counts["refused"] += len(not_now)
        peer.counts["stale"] += len(places) - lease.pins - len(not_now)
        said = [place for place in places if place not in not_now and not self.hints.peer_of(keys[place])]
        if said:  # by the directory
            self._directory.found_at(peer.name, len(said), sum(pins[place] is None for place in said))
        if lease.pins:
            self._leases.add(lease)
            self.keep(asyncio.create_task(self._renew(lease)))

    async def _renew(self, lease: HeldLease) -> None:
        """Until it is not needed, or is lost."""
        period = self._about.lease_seconds / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(period)
            if not lease.pins or lease.session != lease.peer.session:
                self._leases.discard(lease)
                return
            asked = time.monotonic()
            try:
                if await lease.peer.ask(RENEW, lease.number, seconds=period):
                    lease.ends_at = asked + self._about.lease_seconds
                    continue
            except PeerError:
                pass
            self._leases.discard(lease)
            return

    def _drop(self, pin: Pin) -> None:
        lease = pin.lease
        lease.pins -= 1
        if lease.pins == 0:
            self._leases.discard(lease)
            if lease.session == lease.peer.session:
                self.keep(asyncio.create_task(self._end(lease)))

    async def _end(self, lease: HeldLease) -> None:
        with contextlib.suppress(PeerError):
            await lease.peer.ask(END, lease.number, seconds=self._settings.lookup_timeout)

    async def _run(self) -> None:
        self._context = zmq.asyncio.Context()
        self._transfers.start()
        await self._stopped.wait()
        for peer in self._peers.values():
            peer.disconnect()
        if not await self._transfers.ended():
            return
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._transfers.stop()
        self._context.destroy(0)


def _run(places: Sequence[int], missing: Collection[int]) -> int:
    """How many of the missing, from the first on, are among these."""
    own = set(places)
    run = 0
    for place in sorted(missing):
        if place not in own:
            break
        run += 1
    return run
