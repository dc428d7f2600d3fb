"""Deleting from an adapter: in slices, with what became of each object, one deletion at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import pytest

from core.tests.storage.shelf import Shelf, key, port_of, wait_for
from lmcache_admin import l2_deletions
from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.l2_deletions import Deletion, DeletionRefusedError, DeletionState, L2Deletions
from lmcache_admin.l2_listing import L2Listing
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.model.keys import ObjectKey
from lmcache_devkit.fake_clock import FakeClock


class Case:
    def __init__(self) -> None:
        self.shelf = Shelf([key(number, "m" if number < 6 else "n") for number in range(10)])
        self.port: AdapterClient = port_of(self.shelf)
        self.clock = FakeClock()
        self.deletions = L2Deletions(L2Listing(lambda: [self.port]), self.clock)

    def ended(self, deletion: Deletion) -> tuple[DeletionState, int, int, int, int]:
        wait_for(deletion.done.is_set, self.port)
        return deletion.state, deletion.deleted, deletion.missing, deletion.skipped, deletion.failed


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.deletions.stop()
    case.shelf.goes_on.set()
    for deletion in list(case.deletions._deletions.values()):
        wait_for(deletion.done.is_set, case.port)
    case.shelf.close(0)


def test_each_key_has_an_outcome(case: Case) -> None:
    case.shelf.kept.add(key(1))
    deletion = case.deletions.delete_keys(None, [key(0), key(1), key(99), key(2)])
    assert case.ended(deletion) == (DeletionState.COMPLETED, 2, 1, 1, 0)
    assert key(1) in case.shelf.shelved
    assert len(case.shelf.shelved) == 8
    assert case.deletions.find(deletion.deletion_id) is deletion


def test_a_filter_takes_all_that_passes_in_slices(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_deletions, "SLICE", 4)
    deletion = case.deletions.delete_matching("shelf", KeyFilter("m"))
    assert case.ended(deletion) == (DeletionState.COMPLETED, 6, 0, 0, 0)
    assert list(case.shelf.shelved) == [key(number, "n") for number in range(6, 10)]
    assert max(case.shelf.slices) <= 4
    assert case.ended(case.deletions.delete_matching("shelf", KeyFilter())) == (DeletionState.COMPLETED, 4, 0, 0, 0)
    assert not case.shelf.shelved


def test_one_at_a_time(case: Case) -> None:
    case.shelf.goes_on.clear()
    first = case.deletions.delete_matching(None, KeyFilter())
    with pytest.raises(DeletionRefusedError, match=f"adapter 'shelf' is deleting already \\({first.deletion_id}\\)"):
        case.deletions.delete_keys(None, [key(1)])
    case.shelf.goes_on.set()
    assert case.ended(first)[0] is DeletionState.COMPLETED
    assert case.ended(case.deletions.delete_keys(None, [key(1)])) == (DeletionState.COMPLETED, 0, 1, 0, 0)


def test_an_adapter_that_fails_is_left_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_deletions, "SLICE", 1)
    case.shelf.broken = True
    deletion = case.deletions.delete_keys(None, [key(number) for number in range(10)])
    assert case.ended(deletion) == (DeletionState.FAILED, 0, 0, 0, l2_deletions.FAILED_SLICES_MAX)
    assert deletion.error == "adapter 'shelf' fails to delete; the rest was not tried"
    deletion = case.deletions.delete_matching(None, KeyFilter())
    assert case.ended(deletion)[0] is DeletionState.FAILED
    assert deletion.error == "adapter 'shelf' failed to list its keys; the server's log says why"


def test_stop_ends_a_deletion_that_is_not_answered(case: Case) -> None:
    case.shelf.answers = False
    deletion = case.deletions.delete_keys(None, [key(1)])
    wait_for(lambda: bool(case.shelf.slices))
    case.deletions.stop()
    assert case.ended(deletion) == (DeletionState.STOPPED, 0, 0, 0, 0)
    assert case.ended(case.deletions.delete_keys(None, [key(1)]))[0] is DeletionState.STOPPED


def test_what_ended_long_ago_is_forgotten(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_deletions, "KEPT_MAX", 2)
    three = []
    for number in range(3):
        three.append(case.deletions.delete_keys(None, [key(number)]))
        case.ended(three[-1])
    assert [case.deletions.find(each.deletion_id) is each for each in three] == [False, True, True]
    case.clock.advance(l2_deletions.KEPT_SECONDS + 1)
    assert [case.deletions.find(each.deletion_id) for each in three] == [None, None, None]


def test_deletions_leave_no_descriptor(case: Case) -> None:
    case.ended(case.deletions.delete_keys(None, [key(0)]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        case.ended(case.deletions.delete_keys(None, [key(1)]))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_an_adapter_that_is_removed_meanwhile_is_reported(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_deletions, "SLICE", 4)
    case.port.shut()
    deletion = case.deletions.delete_keys(None, [key(number) for number in range(10)])
    assert case.ended(deletion) == (DeletionState.FAILED, 0, 0, 0, 4)
    assert deletion.error == "adapter 'shelf' was removed meanwhile; the rest was not tried"
    deletion = case.deletions.delete_matching(None, KeyFilter())
    assert case.ended(deletion) == (DeletionState.FAILED, 0, 0, 0, 0)
    assert deletion.error == "adapter 'shelf' was removed meanwhile"
    assert len(case.shelf.shelved) == 10


def test_the_accounting_of_the_adapter_is_notified(case: Case) -> None:
    notified: list[tuple[str, list[int]]] = []

    class Books:
        def stored(self, objects: object) -> None: ...

        def may_have_stored(self, objects: object) -> None: ...

        def hit(self, keys: object) -> None: ...

        def deleting(self, keys: Sequence[ObjectKey]) -> None:
            assert key(0) in case.shelf.shelved, "notified before it happens"
            notified.append(("deleting", _numbers(keys)))

        def deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
            notified.append(("deleted", _numbers(keys)))
            notified.append(("gone", _numbers(gone)))

    case.port.watch(Books())
    case.shelf.kept.add(key(1))
    case.ended(case.deletions.delete_keys(None, [key(0), key(1), key(99)]))
    assert notified == [("deleting", [0, 1, 99]), ("deleted", [0, 1, 99]), ("gone", [0, 99])]


def _numbers(keys: Sequence[ObjectKey]) -> list[int]:
    return [int.from_bytes(each.chunk_hash, "big") for each in keys]


def test_a_key_that_is_named_twice_is_deleted_once(case: Case) -> None:
    deletion = case.deletions.delete_keys(None, [key(0), key(0)])
    assert case.ended(deletion) == (DeletionState.COMPLETED, 1, 0, 0, 0)


def test_a_thread_that_cannot_start_leaves_nothing_running(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(DeletionRefusedError, match="no thread to delete with"):
            case.deletions.delete_keys(None, [key(0)])
    assert case.ended(case.deletions.delete_keys(None, [key(0)])) == (DeletionState.COMPLETED, 1, 0, 0, 0)


def test_deleting_everything_takes_objects_of_other_versions_along(case: Case) -> None:
    case.shelf.other_versions = 5
    assert case.ended(case.deletions.delete_matching(None, KeyFilter("m"))) == (DeletionState.COMPLETED, 6, 0, 0, 0)
    assert case.shelf.other_versions == 5
    assert case.ended(case.deletions.delete_matching(None, KeyFilter())) == (DeletionState.COMPLETED, 9, 0, 0, 0)
    assert case.shelf.other_versions == 0


def test_where_objects_of_other_versions_cannot_be_deleted_it_has_failed(case: Case) -> None:
    case.shelf.other_versions = -1
    deletion = case.deletions.delete_matching(None, KeyFilter())
    assert case.ended(deletion) == (DeletionState.FAILED, 10, 0, 0, 0)
    assert "other format versions" in deletion.error
