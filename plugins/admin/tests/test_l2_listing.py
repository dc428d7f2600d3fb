"""Adapters list what they have, each at its own pace; requests are answered in time."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from core.tests.storage.shelf import Shelf, key, port_of, wait_for
from lmcache_admin import l2_listing
from lmcache_admin.key_filter import KeyFilter
from lmcache_admin.l2_listing import (
    AdapterFailedError,
    AdapterNotNamedError,
    AdapterSilentError,
    L2Listing,
    NotOfferedError,
)
from lmcache_core import NoSuchAdapterError
from lmcache_core.contracts.capability import Capability
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import KeyPage

ANY = KeyFilter()


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf([key(number, "even" if number % 2 == 0 else "odd") for number in range(20)])
    yield shelf
    shelf.goes_on.set()
    shelf.close(0)


def listed(keys: L2Listing, port: AdapterClient, limit: int, only: KeyFilter = ANY) -> list[ObjectKey]:
    found: list[ObjectKey] = []
    cursor: str | None = None
    while True:
        page = keys.page(port, cursor, limit, only)
        assert len(page.keys) <= limit
        found += page.keys
        if (cursor := page.cursor) is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 100])
@pytest.mark.parametrize("at_once", [2, 500])
def test_every_key_is_on_one_page(shelf: Shelf, limit: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_listing, "KEYS_AT_ONCE", at_once)
    keys = L2Listing(list)
    port = port_of(shelf)
    assert listed(keys, port, limit) == [key(number, "even" if number % 2 == 0 else "odd") for number in range(20)]
    assert all(asked <= min(limit, at_once) for _, asked in shelf.calls)
    assert listed(keys, port, limit, KeyFilter("odd")) == [key(number, "odd") for number in range(1, 20, 2)]
    assert listed(keys, port, limit, KeyFilter(None, "alice")) == []


def test_an_adapter_is_found_by_its_name_or_is_the_only_one(shelf: Shelf) -> None:
    one, two = port_of(shelf, "one"), port_of(shelf, "two", 1)
    with pytest.raises(NoSuchAdapterError, match="no L2 adapter; start it with --l2-adapter"):
        L2Listing(list).client(None, Capability.LIST)
    assert L2Listing(lambda: [one]).client(None, Capability.LIST) is one
    several = L2Listing(lambda: [one, two])
    assert several.client("two", Capability.LIST) is two
    with pytest.raises(AdapterNotNamedError, match="there are: one, two"):
        several.client(None, Capability.LIST)
    with pytest.raises(NoSuchAdapterError, match="no adapter is called 'three'; there are: one, two"):
        several.client("three", Capability.LIST)


def test_a_lacking_capability_is_named(shelf: Shelf) -> None:
    port = AdapterClient(0, "poor", shelf, Capability.DELETE, port_of(shelf)._clock, 30.0)
    with pytest.raises(NotOfferedError, match="adapter 'poor' does not offer LIST"):
        L2Listing(lambda: [port]).client("poor", Capability.LIST | Capability.DELETE)


def test_one_that_hangs_is_abandoned_and_then_left_alone(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_listing, "CALLS_MAX", 2)
    shelf.goes_on.clear()
    port = port_of(shelf)
    keys = L2Listing(lambda: [port], page_seconds=0.05)
    for _ in range(2):
        with pytest.raises(AdapterSilentError, match="adapter 'shelf' did not list its keys within"):
            keys.page(port, None, 5, ANY)
    with pytest.raises(AdapterSilentError, match="has not answered 2 earlier calls"):
        keys.page(port, None, 5, ANY)
    assert len(shelf.calls) == 2
    shelf.goes_on.set()
    wait_for(lambda: keys._turns[port]._value == 2)
    assert len(L2Listing(lambda: [port]).page(port, None, 5, ANY).keys) == 5
    assert len(keys.page(port, None, 5, ANY).keys) == 5


def keys_that_hang_at_the_third_call(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> tuple[L2Listing, AdapterClient]:
    """Two keys a call, and soon out of time."""
    monkeypatch.setattr(l2_listing, "KEYS_AT_ONCE", 2)
    port = port_of(shelf)
    give = shelf.list_keys

    def hangs_at_the_third(cursor: str | None, limit: int) -> KeyPage:
        if len(shelf.calls) == 2:
            shelf.goes_on.clear()
        return give(cursor, limit)

    monkeypatch.setattr(shelf, "list_keys", hangs_at_the_third)
    return L2Listing(lambda: [port], page_seconds=0.3), port


def test_what_came_in_time_is_a_page(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, port = keys_that_hang_at_the_third_call(shelf, monkeypatch)
    page = keys.page(port, None, 10, ANY)
    assert len(page.keys) == 4
    assert page.cursor == key(3, "odd").canonical.hex()


def test_a_filter_that_nothing_passes_gets_on_from_page_to_page(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter is slow, and its time is over in the middle of a call: what was looked at is not looked at again."""
    keys, port = keys_that_hang_at_the_third_call(shelf, monkeypatch)
    page = keys.page(port, None, 10, KeyFilter("absent"))
    assert (page.keys, page.cursor) == ((), key(3, "odd").canonical.hex())
    with pytest.raises(AdapterSilentError):
        keys.page(port, page.cursor, 10, KeyFilter("absent"))


def test_calls_of_an_adapter_that_is_gone_are_not_its_namesakes(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_listing, "CALLS_MAX", 1)
    gone, other = port_of(shelf), Shelf([key(1)])
    keys = L2Listing(list, page_seconds=0.05)
    shelf.goes_on.clear()
    with pytest.raises(AdapterSilentError):
        keys.page(gone, None, 5, ANY)
    namesake = port_of(other)
    assert keys.page(namesake, None, 5, ANY).keys == (key(1),)
    assert len(keys._turns) == 2
    shelf.goes_on.set()
    turns, ends = keys._turns[gone], weakref.ref(gone)
    wait_for(lambda: turns._value == 1)
    del gone, namesake
    wait_for(lambda: gc.collect() >= 0 and ends() is None)
    assert len(keys._turns) == 0
    other.close(0)


def test_a_thread_that_cannot_start_costs_no_turn(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l2_listing, "CALLS_MAX", 1)
    port = port_of(shelf)
    keys = L2Listing(lambda: [port])
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(AdapterFailedError, match="no thread to ask adapter 'shelf'"):
            keys.page(port, None, 5, ANY)
    assert len(keys.page(port, None, 5, ANY).keys) == 5


def _no_thread(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_one_that_is_being_removed_is_not_called(shelf: Shelf) -> None:
    port = port_of(shelf)
    port.shut()
    with pytest.raises(NoSuchAdapterError, match="adapter 'shelf' was removed meanwhile"):
        L2Listing(list).page(port, None, 5, ANY)
    assert not shelf.calls


def test_one_that_fails_says_so(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    port = port_of(shelf)
    keys = L2Listing(lambda: [port])
    shelf.broken = True
    with pytest.raises(AdapterFailedError, match="adapter 'shelf' failed to list its keys"):
        keys.page(port, None, 5, ANY)
    strange: Any = ("no key", key(1))
    monkeypatch.setattr(shelf, "list_keys", lambda cursor, limit: KeyPage(strange, None))
    assert keys.page(port, None, 5, ANY).keys == (key(1),)
    monkeypatch.setattr(shelf, "list_keys", lambda cursor, limit: KeyPage((), "again"))
    with pytest.raises(AdapterFailedError, match="lists in circles"):
        keys.page(port, None, 5, ANY)
