"""Whoever watches a client is told what its adapter has."""

from __future__ import annotations

from typing import Any

from core.tests.controllers.adapter_desk import KEYS, Desk
from lmcache_core.contracts.l2_adapter import StoreItem
from lmcache_core.controllers.adapter_jobs import JobAnswer
from lmcache_core.model.results import Outcome
from lmcache_devkit.lent_memory import LentMemory


class Diary:
    def __init__(self) -> None:
        self.notes: list[Any] = []

    def stored(self, objects: Any) -> None:
        self.notes.append(("stored", list(objects)))

    def may_have_stored(self, objects: Any) -> None:
        self.notes.append(("may have stored", list(objects)))

    def hit(self, keys: Any) -> None:
        self.notes.append(("hit", list(keys)))

    def deleting(self, keys: Any) -> None:
        self.notes.append(("deleting", list(keys)))

    def deleted(self, keys: Any, gone: Any) -> None:
        self.notes.append(("deleted", list(keys), list(gone)))


def test_a_watcher_is_told_what_the_adapter_has(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.client.watch(diary)
    items = [StoreItem(key, memory.lend(4096)) for key in KEYS[:2]]
    desk.client.submit_store(items, desk.inbox, "store")
    assert desk.client.in_use() == set(KEYS[:2])
    desk.client.submit_store(items, desk.inbox, "fails")
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.adapter.fail(desk.adapter.waiting[0])
    desk.answers()
    desk.client.submit_lookup(KEYS, desk.inbox, "lookup")
    desk.client.submit_delete(KEYS[:1], desk.inbox, "delete")
    assert desk.client.in_use() == set()
    for job in list(desk.adapter.waiting):
        desk.adapter.finish(job)
    answers = desk.answers()
    assert diary.notes == [("stored", [(KEYS[0], 4096), (KEYS[1], 4096)]), ("hit", KEYS[:2])]
    assert answers[-1] == JobAnswer("delete", (Outcome.DONE,), released=True)


def test_a_store_that_arrives_after_its_deadline_is_told_too(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.client.watch(diary)
    desk.client.submit_store([StoreItem(KEYS[0], memory.lend(4096))], desk.inbox, "late")
    desk.client.expire(desk.clock.monotonic() + 31)
    desk.adapter.finish(desk.adapter.waiting[0])
    desk.answers()
    assert diary.notes == [("stored", [(KEYS[0], 4096)])]


def test_what_an_adapter_gave_up_and_may_have_kept_is_told(desk: Desk) -> None:
    memory, diary = LentMemory(1 << 16), Diary()
    desk.client.watch(diary)
    desk.client.submit_store([StoreItem(KEYS[0], memory.lend(4096))], desk.inbox, "slow")
    desk.client.submit_store([StoreItem(KEYS[1], memory.lend(4096))], desk.inbox, "fails")
    slow, failing = desk.adapter.waiting
    desk.adapter.time_out(slow)
    desk.adapter.fail(failing)
    desk.answers()
    assert diary.notes == [("may have stored", [(KEYS[0], 4096)])]
    assert desk.client.in_use() == {KEYS[0]}, "it is being stored until its buffer is released"
    desk.adapter.let_go(slow)
    desk.answers()
    assert desk.client.in_use() == set()
