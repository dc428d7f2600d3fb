"""The requirements of an eviction of L2, as tests.  A distribution runs them with two lines:

class TestAcme(L2EvictionSuite):
    offer = "acme"
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from lmcache_core.builtin.lru import open_lru
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.contracts.l2_eviction import EvictedAdapter, L2Eviction, L2EvictionContext, L2EvictionSettings
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.results import KeyPage, Outcome, Usage
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

OBJECTS = 100
"""Capacity of the adapter."""
OBJECT_BYTES = 4096
QUIET_SECONDS = 2.0
"""Nothing wrong happens within this time."""
SECONDS = 20.0
"""Time limit of everything that is waited for."""
END_SECONDS = 5.0
SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))


def key(number: int) -> ObjectKey:
    return ObjectKey(SPACE, number.to_bytes(32, "big"))


class FullAdapter(EvictedAdapter):
    """An adapter with a capacity of OBJECTS.  Deletes on a thread of its own."""

    name = "adapter"
    capabilities = Capability.DELETE | Capability.USAGE | Capability.LIST
    answers = True
    is_learning = False

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, int] = {}
        self.busy: set[ObjectKey] = set()
        self.asked: list[ObjectKey] = []
        """Keys of all deletes, in their order."""
        self.fails = False
        self.said: Usage | None = None
        """Answered instead of the truth: an adapter may count now and then."""
        self._lock = threading.Lock()
        self._deleting = ThreadPoolExecutor(1, "deletes")

    def add(self, *numbers: int) -> list[tuple[ObjectKey, int]]:
        added = [(key(number), OBJECT_BYTES) for number in numbers]
        with self._lock:
            self.objects.update(added)
        return added

    def usage(self) -> Usage:
        with self._lock:
            used = Usage(sum(self.objects.values()), OBJECTS * OBJECT_BYTES, len(self.objects))
        return self.said or used

    def in_use(self) -> set[ObjectKey]:
        return self.busy

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        with self._lock:
            keys = list(self.objects)
        first = int(cursor or 0)
        last = first + min(limit, 7)
        return KeyPage(tuple(keys[first:last]), str(last) if last < len(keys) else None)

    def delete_soon(self, keys: Sequence[ObjectKey], on_answer: Callable[[Sequence[Outcome]], None]) -> None:
        self._deleting.submit(lambda: on_answer([self._delete(each) for each in keys]))

    def close(self) -> None:
        self._deleting.shutdown()

    def _delete(self, each: ObjectKey) -> Outcome:
        with self._lock:
            self.asked.append(each)
            if self.fails:
                return Outcome.FAILED
            return Outcome.MISSING if self.objects.pop(each, None) is None else Outcome.DONE


def eviction_context(adapter: EvictedAdapter) -> L2EvictionContext:
    """With LRU as the policy."""
    clock = SystemClock()
    policy = GuardedPolicy("eviction policy of adapter", open_lru(None), clock)
    return L2EvictionContext(adapter, policy, clock, EventRecorder())


class Running:
    """The eviction of an adapter, with its threads."""

    def __init__(self, under_test: OpenableOffer) -> None:
        self.adapter = FullAdapter()
        self.eviction: L2Eviction = under_test.open(eviction_context(self.adapter))
        self.threads: list[threading.Thread] = []
        self.failures: list[str] = []

    def start(self) -> None:
        for name, body in self.eviction.threads().items():
            thread = threading.Thread(target=self._run, args=(name, body), name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def store(self, *numbers: int) -> None:
        self.eviction.stored(self.adapter.add(*numbers))

    def wait_for(self, condition: Callable[[], object], otherwise: str) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert self.failures == []
            assert time.monotonic() < until, otherwise
            time.sleep(0.02)

    def wait_for_room(self, otherwise: str = "it deletes nothing of a full adapter") -> None:
        self.wait_for(lambda: len(self.adapter.objects) < OBJECTS, otherwise)

    def end(self) -> list[str]:
        """Names of threads that do not end."""
        self.eviction.stop()
        until = time.monotonic() + END_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, until - time.monotonic()))
        return [thread.name for thread in self.threads if thread.is_alive()]

    def _run(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 - reported by the check
            self.failures.append(f"thread {name}: {type(error).__name__}: {error}")


class L2EvictionSuite(OfferSuite):
    """Set `offer`; override `settings` where it needs more than a policy."""

    kind: ClassVar[str] = "l2_eviction"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"eviction_policy": "LRU"}

    @pytest.fixture
    def running(self, under_test: OpenableOffer) -> Iterator[Running]:
        running = Running(under_test)
        yield running
        late = running.end()
        running.adapter.close()
        assert late == [], f"threads that do not end after stop: {', '.join(late)}"
        assert running.failures == []

    def test_it_is_an_eviction(self, under_test: OpenableOffer, running: Running) -> None:
        assert isinstance(running.eviction, L2Eviction)
        assert isinstance(under_test.validated(), L2EvictionSettings), "its settings extend L2EvictionSettings"
        assert all(running.eviction.threads()), "its threads have names"

    def test_its_status_is_json_at_any_time(self, running: Running) -> None:
        json.dumps(running.eviction.status())
        running.start()
        running.store(*range(OBJECTS))
        running.wait_for_room()
        json.dumps(running.eviction.status())

    def test_nothing_is_deleted_while_there_is_room(self, running: Running) -> None:
        running.start()
        running.store(*range(OBJECTS // 10))
        time.sleep(QUIET_SECONDS)
        assert running.adapter.asked == []

    def test_a_full_adapter_has_room_again_and_is_not_emptied(self, running: Running) -> None:
        running.start()
        for first in range(0, 3 * OBJECTS, OBJECTS // 4):
            running.store(*range(first, first + OBJECTS // 4))
            running.wait_for_room()
        time.sleep(QUIET_SECONDS)
        assert len(running.adapter.objects) >= OBJECTS // 4, "it goes on deleting where there is room"

    def test_objects_from_before_the_start_are_found(self, running: Running) -> None:
        """By a listing: nothing was said of these objects."""
        running.adapter.add(*range(OBJECTS))
        running.start()
        running.wait_for_room("objects from before the start are never deleted")

    def test_objects_in_use_are_not_deleted(self, running: Running) -> None:
        running.adapter.busy = {key(number) for number in range(OBJECTS // 2, OBJECTS)}
        running.start()
        running.store(*range(OBJECTS))
        running.wait_for_room("objects that are not in use are not deleted either")
        time.sleep(QUIET_SECONDS)
        assert running.adapter.busy.isdisjoint(running.adapter.asked), "an object in use was to be deleted"

    def test_the_policy_decides(self, running: Running) -> None:
        """LRU: of what was stored together the end goes first, unless it was hit since."""
        hit = {key(number) for number in range(OBJECTS // 2 - 10, OBJECTS // 2)}
        running.start()
        running.store(*range(OBJECTS // 2))
        running.eviction.hit(list(hit))
        running.store(*range(OBJECTS // 2, OBJECTS))
        running.wait_for_room()
        assert hit.isdisjoint(running.adapter.asked[:10]), "what was hit last went first"

    def test_evicted_objects_are_counted(self, running: Running) -> None:
        running.start()
        running.store(*range(OBJECTS))
        running.wait_for_room()
        counts = running.eviction.counts

        def gone() -> int:
            return OBJECTS - len(running.adapter.objects)

        running.wait_for(
            lambda: (counts.evicted, counts.evicted_bytes) == (gone(), gone() * OBJECT_BYTES),
            "evicted and evicted_bytes are not what was deleted",
        )

    def test_an_adapter_that_fails_is_tried_again(self, running: Running) -> None:
        running.adapter.fails = True
        running.start()
        running.store(*range(OBJECTS))
        running.wait_for(lambda: running.eviction.counts.failed, "failures are not counted")
        assert running.eviction.counts.evicted == 0, "what failed is counted as evicted"
        running.adapter.fails = False
        running.wait_for_room("it is not tried again")

    def test_an_adapter_that_counts_now_and_then_is_not_emptied(self, running: Running) -> None:
        """An eviction that goes on deleting by an old count would empty it."""
        running.adapter.said = Usage(OBJECTS * OBJECT_BYTES, OBJECTS * OBJECT_BYTES, OBJECTS)
        running.start()
        running.store(*range(OBJECTS))
        running.wait_for_room()
        time.sleep(2 * QUIET_SECONDS)
        assert len(running.adapter.objects) >= OBJECTS // 4, "it deletes by a count that does not change"

    def test_an_adapter_that_does_not_answer_is_asked_for_nothing(self, running: Running) -> None:
        running.adapter.answers = False
        running.start()
        running.store(*range(OBJECTS))
        time.sleep(QUIET_SECONDS)
        assert running.adapter.asked == []
