"""A medium, and a server above it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.media_faults.medium import CuedMedium, cued_medium
from tests.media_faults.site import Site, options

OpenSite = Callable[..., Site]


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[CuedMedium]:
    with cued_medium(tmp_path) as medium:
        yield medium


@pytest.fixture
def open_site(start_server: StartServer) -> Iterator[OpenSite]:
    """A function `(adapter, *options)` to a server with this adapter; closed with the test."""
    sites: list[Site] = []

    def open_site(adapter: Mapping[str, Any], *more: str) -> Site:
        sites.append(Site(start_server(*options(adapter, *more))))
        return sites[-1]

    yield open_site
    for site in sites:
        site.close()
