"""Subscribers: a right one and mutants."""

from __future__ import annotations

import struct
import threading
import time

from lmcache_core.contracts.events import (
    ChunksStored,
    Event,
    LookupFinished,
    ObjectsAdded,
    RequestAnswered,
    StoreRefused,
)
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_devkit.subscriber_suite import SubscriberSuite
from plugins.devkit.tests.mutants.planted import Planted


class CountsChunks(Subscriber):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, settings: None) -> None:
        self.chunks = 0

    def subscriptions(self) -> Subscriptions:
        return {ChunksStored: self.stored}

    def stored(self, event: ChunksStored) -> None:
        self.chunks += event.chunks


PLANTED = Planted("subscribers.py", CountsChunks)


class ListensToEverything(CountsChunks):
    """Right, too."""

    def subscriptions(self) -> Subscriptions:
        return {Event: lambda event: None}


@PLANTED.killed_by("it_subscribes_to_events")
class SubscribesToNothing(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {}


@PLANTED.killed_by("it_subscribes_to_events")
class SubscribesToNames(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {"ChunksStored": self.stored}  # type: ignore[dict-item]


@PLANTED.killed_by("every_event_is_taken_whatever_its_fields_say")
class ExpectsASalt(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        event.cache_salt[0].upper()


@PLANTED.killed_by("every_event_is_taken_whatever_its_fields_say")
class DividesByChunks(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        self.chunks = event.payload_bytes // event.chunks


@PLANTED.killed_by("memory_does_not_grow_with_events")
class KeepsEveryRequest(CountsChunks):
    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.seen: set[str] = set()

    def subscriptions(self) -> Subscriptions:
        return {LookupFinished: lambda event: self.seen.add(event.request_id)}


@PLANTED.killed_by("on_the_bus_nothing_fails_and_nothing_is_left")
class FailsLater(CountsChunks):
    """Takes a few events and then no more, as one whose connection breaks."""

    def stored(self, event: ChunksStored) -> None:
        super().stored(event)
        if self.chunks > 3:
            raise ConnectionError("gone")


class ReadsHashes(CountsChunks):
    """Right, too: there are 32 bytes for each chunk."""

    def subscriptions(self) -> Subscriptions:
        return {ObjectsAdded: self.came}

    def came(self, event: ObjectsAdded) -> None:
        self.chunks += sum(1 for _ in struct.iter_unpack("32s", event.chunk_hashes))


@PLANTED.killed_by("every_documented_value_is_taken", "KeyError: 'stopping' for StoreRefused")
class LacksAReason(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {StoreRefused: self.refused}

    def refused(self, event: StoreRefused) -> None:
        if event.reason in ("no_room", "quota", "too_many_transfers", "stopping"):
            self.chunks += {"no_room": 1, "quota": 2, "too_many_transfers": 3}[event.reason]


@PLANTED.killed_by("every_documented_value_is_taken", "ZeroDivisionError.*for ObjectsAdded.*origin='l2'")
class DividesForL2(CountsChunks):
    """A branch that only one origin reaches."""

    def subscriptions(self) -> Subscriptions:
        return {ObjectsAdded: self.came}

    def came(self, event: ObjectsAdded) -> None:
        if event.origin == "l2":
            self.chunks += 1 // self.chunks


@PLANTED.killed_by("every_documented_value_is_taken", "for RequestAnswered.*outcome='refused'")
class CountsOutcomesInAList(CountsChunks):
    def subscriptions(self) -> Subscriptions:
        return {RequestAnswered: self.answered}

    def answered(self, event: RequestAnswered) -> None:
        counts = [0, 0]
        for number, outcome in enumerate(("ok", "error", "refused")):
            if event.outcome == outcome:
                counts[number] += 1


@PLANTED.killed_by("no_call_blocks", "batch_done, where nothing may block: it took longer than 5 s")
class WritesSlowly(CountsChunks):
    """To a place that takes ten seconds."""

    def batch_done(self) -> None:
        time.sleep(10)


@PLANTED.killed_by("no_call_blocks", "the function for ChunksStored, where nothing may block: it took longer than 5 s")
class WaitsForAnAnswer(CountsChunks):
    def stored(self, event: ChunksStored) -> None:
        threading.Event().wait()


@PLANTED.killed_by("close_ends_what_it_began", "close, where nothing may block: it took longer than 5 s")
class HangsInClose(CountsChunks):
    """Waits for a thread that it has not asked to end."""

    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.thread = threading.Thread(target=threading.Event().wait, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.thread.join()


@PLANTED.killed_by("close_ends_what_it_began", "threads that outlive close: exporter")
class LeavesItsThread(CountsChunks):
    def begin(self, server: ServerView) -> None:
        threading.Thread(target=time.sleep, args=(20,), name="exporter", daemon=True).start()


class TestReadsHashes(SubscriberSuite):
    offer = PLANTED.offer(ReadsHashes)


class TestListensToEverything(SubscriberSuite):
    offer = PLANTED.offer(ListensToEverything)


globals().update(PLANTED.suites(SubscriberSuite, __name__))
