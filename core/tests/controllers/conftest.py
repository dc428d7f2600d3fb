"""Desks of an adapter, and sites of an eviction of L2, closed behind each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from core.tests.controllers.adapter_desk import Desk
from core.tests.controllers.eviction_site import Site
from lmcache_core.contracts.policies import EvictionPolicy


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.adapter.close(0)
    desk.inbox.close()


@pytest.fixture
def open_site() -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def start(policy: EvictionPolicy | None = None) -> Site:
        sites.append(Site(policy))
        return sites[-1]

    yield start
    for site in sites:
        site.adapter.close(0)
        site.inbox.close()


@pytest.fixture
def site(open_site: Callable[..., Site]) -> Site:
    return open_site()
