"""Listeners of a client are notified of what its adapter has."""

from __future__ import annotations

from typing import Any

from core.tests.controllers.adapter_harness import KEYS, AdapterHarness
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory


class Diary:
    def __init__(self) -> None:
        self.notifications: list[Any] = []

    def stored(self, objects: Any) -> None:
        self.notifications.append(("stored", list(objects)))

    def may_have_stored(self, objects: Any) -> None:
        self.notifications.append(("may have stored", list(objects)))

    def hit(self, keys: Any) -> None:
        self.notifications.append(("hit", list(keys)))

    def deleting(self, keys: Any) -> None:
        self.notifications.append(("deleting", list(keys)))

    def deleted(self, keys: Any, gone: Any) -> None:
        self.notifications.append(("deleted", list(keys), list(gone)))


def test_a_listener_is_notified_of_what_the_adapter_has(harness: AdapterHarness) -> None:
    memory, diary = BorrowedMemory(1 << 16), Diary()
    harness.client.watch(diary)
    items = [StoreItem(key, memory.lend(4096)) for key in KEYS[:2]]
    harness.client.submit_store(items, harness.inbox, "store")
    assert harness.client.in_use() == set(KEYS[:2])
    harness.client.submit_store(items, harness.inbox, "fails")
    harness.adapter.finish(harness.adapter.waiting[0])
    harness.adapter.fail(harness.adapter.waiting[0])
    harness.answers()
    harness.client.submit_lookup(KEYS, harness.inbox, "lookup")
    deleted: list[Any] = []
    harness.client.delete_soon(KEYS[:1], deleted.append)
    assert harness.client.in_use() == set()
    for job in list(harness.adapter.waiting):
        harness.adapter.finish(job)
    harness.answers()
    assert diary.notifications == [("stored", [(KEYS[0], 4096), (KEYS[1], 4096)]), ("hit", KEYS[:2])]
    assert deleted == [(Outcome.DONE,)]


def test_a_store_that_arrives_after_its_deadline_is_notified_too(harness: AdapterHarness) -> None:
    memory, diary = BorrowedMemory(1 << 16), Diary()
    harness.client.watch(diary)
    harness.client.submit_store([StoreItem(KEYS[0], memory.lend(4096))], harness.inbox, "late")
    harness.client.expire(harness.clock.monotonic() + 31)
    harness.adapter.finish(harness.adapter.waiting[0])
    harness.answers()
    assert diary.notifications == [("stored", [(KEYS[0], 4096)])]


def test_what_an_adapter_abandoned_and_may_have_kept_is_notified(harness: AdapterHarness) -> None:
    memory, diary = BorrowedMemory(1 << 16), Diary()
    harness.client.watch(diary)
    harness.client.submit_store([StoreItem(KEYS[0], memory.lend(4096))], harness.inbox, "slow")
    harness.client.submit_store([StoreItem(KEYS[1], memory.lend(4096))], harness.inbox, "fails")
    slow, failing = harness.adapter.waiting
    harness.adapter.time_out(slow)
    harness.adapter.fail(failing)
    harness.answers()
    assert diary.notifications == [("may have stored", [(KEYS[0], 4096)])]
    assert harness.client.in_use() == {KEYS[0]}, "it is being stored until its buffer is released"
    harness.adapter.release_buffers(slow)
    harness.answers()
    assert harness.client.in_use() == set()
