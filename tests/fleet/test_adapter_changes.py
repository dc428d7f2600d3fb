"""Adapters that are removed and added again under their names, while a coordinator is connected."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmcache_core import Capability, KeyPage, ObjectKey
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_feed import AdapterFeed
from lmcache_fleet.placements import space_number
from tests.fleet.recovery_machine import SPACES, Connection, Server, SharedBackend, Site, name


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def server(site: Site) -> Iterator[Server]:
    server = Server(0, 1, SharedBackend(), 1000, lambda: None)
    server.links[0]._http = Connection(site, [], lambda: None)  # type: ignore[assignment]
    yield server
    server.end()


def private(index: int, *numbers: int) -> AdapterFeed:
    """One that has these keys."""
    page = KeyPage(tuple(ObjectKey(SPACES[0], name(number)) for number in numbers), None, None)
    client = SimpleNamespace(name="disk", index=index, capabilities=Capability(0), list_keys=lambda *_: page)
    return AdapterFeed(cast(AdapterClient, client), "fs")


def found(site: Site, number: int) -> list[str]:
    (locations,) = site.coordinator.placements.lookup(space_number(SPACES[0].tail), name(number))
    return [each.source for each in locations]


def test_stores_in_a_shared_backend_count_on(site: Site, server: Server) -> None:
    link = server.links[0]
    link.step()
    server.store_shared(0, range(10), 100)
    link.step()
    server.replace_adapter()
    link.step()
    server.store_shared(0, range(10, 15), 100)
    link.step()
    assert site.coordinator.usage.by_salt() == {"": 1500}
    server.store_shared(0, [15], 100)
    link.step()
    assert site.coordinator.usage.by_salt() == {"": 1600}


def test_a_private_one_is_what_it_has_now_and_is_listed_once(site: Site, server: Server) -> None:
    link = server.links[0]
    server.feeds[1:] = [private(5, 1, 2)]
    link.step()
    assert (found(site, 1), found(site, 3)) == (["disk"], [])
    server.feeds[1:] = [private(6, 3)]
    link.step()
    assert (found(site, 1), found(site, 3)) == ([], ["disk"])
    asked = cast(Any, link._http).asked
    link.step()
    assert cast(Any, link._http).asked == asked + 1, "a heartbeat, and no listing"
    removed = cast(AdapterFeed, server.feeds.pop())
    link.step()
    assert found(site, 3) == []
    assert not removed.journal.is_open, "there is no reader left"
