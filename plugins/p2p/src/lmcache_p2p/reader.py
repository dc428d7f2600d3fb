"""The reader's side: looks up what peers have, and reads it.

Everything here runs on one event loop, on the thread whose body is `run`.  The adapter calls in from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from lmcache_core import Clock, FaultLog, LoadItem, ObjectKey, Operation, Outcome, TransferChannel
from lmcache_p2p.coordinators import Directory, Hints, Member
from lmcache_p2p.identity import KeyPair
from lmcache_p2p.lessee import ATTEMPTS, Lessee
from lmcache_p2p.messages import Hello
from lmcache_p2p.peer import HeldLease, Peer, PeerError, Pin
from lmcache_p2p.settings import PeerSettings
from lmcache_p2p.transfers import Transfers

logger = logging.getLogger(__name__)

READERS: Final[dict[str, Reader]] = {}
"""Of the servers of this process, by boot id: where adapters find theirs."""
MEMBER_POLL_SECONDS: Final = 0.05


class Reader:
    """`lookup`, `load`, `unpin`, `missed`, `ask`, `keep` and `hints` belong to its loop, the rest to any thread."""

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
        self._directory, self._settings, self._named = directory, settings, named
        self._faults = FaultLog(logger, clock, "service=p2p")
        self.loop = asyncio.new_event_loop()
        self.lessee = Lessee(directory, channels, about, keys, settings, named, self.keep)
        self._transfers = Transfers(self.loop, channels)
        self._pins: dict[ObjectKey, list[Pin]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._stopped = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._run())
        finally:
            if self._stopped.is_set():
                self.lessee.close()
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
            "leases": len(self.lessee.leases),
            "counts": dict(self.counts),
            "peers": {peer.name: {"channel": peer.channel, "open": peer.is_open, **peer.counts} for peer in self.peers},
        }

    def counts_by_peer(self) -> dict[str, dict[str, float]]:
        return {peer.name: dict(peer.counts) for peer in self.peers}

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(self.lessee.peers.values())

    @property
    def hints(self) -> Hints:
        return self.lessee.hints

    @property
    def finds_nothing(self) -> bool:
        """Any thread: no lookup finds anything now, because no coordinator answers, and no peer hands anything over."""
        return self._directory.is_quiet and not self.hints.count_now

    def missed(self, count: int) -> None:
        """Count keys that were not looked up for that reason."""
        self.counts["requested"] += count
        self.counts["missed"] += count

    def members_left(self, keys: frozenset[bytes]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(self.lessee.forget, keys)

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it to its end."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Run it on the loop.  False where that has ended."""
        try:
            self.loop.call_soon_threadsafe(lambda: self.keep(work()))
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
        peer = self.lessee.peer_of(member)
        if not peer.is_open:
            raise PeerError(f"peer {peer.name} has failed a moment ago")
        await peer.connect(self._settings.lookup_timeout)
        return await peer.ask(operation, *payload, seconds=seconds + self._settings.lookup_timeout)

    # --- verbs

    async def lookup(self, keys: Sequence[ObjectKey]) -> list[Outcome]:
        """DONE for what a peer has leased: pinned until `unpin`."""
        found = await self.lessee.lease(keys, [()] * len(keys))
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
                    self.lessee.drop(pin)
            for place, pin in pins.items():
                if outcomes[place] in (Outcome.DAMAGED, Outcome.FOREIGN):
                    self.lessee.reject(items[place].key, pin.lease.peer)
            places = [place for place in places if outcomes[place] is not Outcome.DONE] if pins else []
            if not places:
                break
        return outcomes

    def unpin(self, keys: Sequence[ObjectKey]) -> None:
        for key in keys:
            if pins := self._pins.get(key):
                self.lessee.drop(pins.pop())
                if not pins:
                    del self._pins[key]

    def unpin_all(self) -> None:
        self.unpin([key for key, pins in list(self._pins.items()) for _ in list(pins)])

    async def _pins_of(
        self, items: Sequence[LoadItem], places: Sequence[int], tried: Sequence[Collection[bytes]], attempt: int
    ) -> dict[int, Pin]:
        """What there is to read from, for `drop`: of the first attempt what a lookup has pinned, afterwards another owner."""
        pins: dict[int, Pin] = {}
        if attempt == 0:
            for place in places:
                live = [pin for pin in self._pins.get(items[place].key, ()) if pin.lease.is_live]
                if live:
                    pins[place] = live[-1]
                    live[-1].lease.pins += 1  # `unpin` may come before the bytes have
        rest = [place for place in places if place not in pins]
        if rest and not pins:  # otherwise what there is comes first
            found = await self.lessee.lease([items[place].key for place in rest], [tried[place] for place in rest])
            pins |= {place: pin for place, pin in zip(rest, found, strict=True) if pin is not None}
        return pins

    async def _run(self) -> None:
        self.lessee.open()
        self._transfers.start()
        await self._stopped.wait()
        self.lessee.disconnect()
        if not await self._transfers.ended():
            return
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        self._transfers.stop()
