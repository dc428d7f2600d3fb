"""A medium breaks under a running server, and is repaired: nothing wrong is served, and the server serves on."""

from __future__ import annotations

from itertools import count

import pytest

from tests.media_faults.adapters import EVERY, MADE, ON_FILES
from tests.media_faults.conftest import OpenSite
from tests.media_faults.medium import CuedMedium
from tests.media_faults.site import CHUNKS, Site, wait_for

BEFORE, DURING = (1, 2), (11, 12)
LATER = 100


@pytest.mark.parametrize("adapter", EVERY)
def test_a_medium_that_only_fails_is_left_alone_until_it_is_back(
    medium: CuedMedium, open_site: OpenSite, adapter: str
) -> None:
    """EIO for every operation, as from a disk that has gone."""
    site = with_objects(open_site, medium, adapter)
    medium.fail("all", "EIO")
    stores_fail_and_the_circuit_opens(site)
    assert [site.hits(number) for number in DURING] == [CHUNKS, CHUNKS], "L1 hits do not go on"
    site.forget_l1()
    assert [site.hits(number) for number in (*BEFORE, *DURING)] == [0] * 4
    medium.repair()
    comes_back(site)
    assert [site.hits(number) for number in BEFORE] == [CHUNKS, CHUNKS], "what was stored before is lost"


@pytest.mark.parametrize("adapter", EVERY)
def test_a_medium_that_becomes_read_only_takes_stores_again_when_it_is_writable(
    medium: CuedMedium, open_site: OpenSite, adapter: str
) -> None:
    """As when the kernel remounts a file system read-only after an error, files that are open for writing included."""
    site = with_objects(open_site, medium, adapter)
    medium.fail("changes", "EROFS")
    stores_fail_and_the_circuit_opens(site)
    site.forget_l1()
    assert [site.hits(number) for number in (*BEFORE, *DURING)] == [CHUNKS, CHUNKS, 0, 0], (
        "what can be read is not served"
    )
    medium.repair()
    comes_back(site)
    assert [site.hits(number) for number in BEFORE] == [CHUNKS, CHUNKS]


@pytest.mark.parametrize("adapter", EVERY)
def test_a_medium_without_room_rejects_stores_and_serves_what_it_has(
    medium: CuedMedium, open_site: OpenSite, adapter: str
) -> None:
    site = with_objects(open_site, medium, adapter)
    medium.fail("growth", "ENOSPC")
    site.store(*DURING)
    site.settle()
    assert site.account["failed_by_outcome"] == {"rejected": len(DURING) * CHUNKS}
    assert site.circuit == "closed", "a full medium is in order"
    assert [site.hits(number) for number in DURING] == [CHUNKS, CHUNKS]
    site.forget_l1()
    assert [site.hits(number) for number in (*BEFORE, *DURING)] == [CHUNKS, CHUNKS, 0, 0]
    medium.repair()
    comes_back(site)


@pytest.mark.parametrize("adapter", ON_FILES)
def test_a_directory_that_vanishes_and_comes_back(medium: CuedMedium, open_site: OpenSite, adapter: str) -> None:
    """It is found again, or stored anew: objects may be lost, bytes may not be wrong."""
    site = with_objects(open_site, medium, adapter)
    directory, elsewhere = medium.root / "l2", medium.root / "elsewhere"
    directory.rename(elsewhere)
    site.store(*DURING)
    site.settle()
    assert [site.hits(number) for number in DURING] == [CHUNKS, CHUNKS]
    site.forget_l1()
    for number in (*BEFORE, *DURING):
        site.hits(number)
    assert site.serves()
    if not directory.exists():
        elsewhere.rename(directory)
    comes_back(site)
    for number in (*BEFORE, *DURING):
        site.hits(number)


def with_objects(open_site: OpenSite, medium: CuedMedium, adapter: str) -> Site:
    """A server whose medium works so far, with two prompts in L2 alone."""
    site = open_site(MADE[adapter](medium.root))
    site.store(*BEFORE)
    site.settle()
    assert site.account["stored"] == len(BEFORE) * CHUNKS
    site.forget_l1()
    assert [site.hits(number) for number in BEFORE] == [CHUNKS, CHUNKS]
    site.forget_l1()
    return site


def stores_fail_and_the_circuit_opens(site: Site) -> None:
    stored = site.account["stored"]
    site.store(*DURING)
    site.settle()
    assert site.account["failed"] == len(DURING) * CHUNKS
    assert site.account["stored"] == stored
    assert site.circuit == "open"
    assert {"adapter_paused", "adapter_jobs_fail"} <= site.conditions()
    assert "adapter_paused" in site.page()
    assert site.serves(), "a server without its L2 still serves"


def comes_back(site: Site) -> None:
    """Stores succeed again, and what they stored is there."""
    site.forget_l1()
    stored = site.account["stored"]
    fresh = count(LATER)

    def stores_again() -> bool:
        site.store(next(fresh))
        site.settle()
        return bool(site.account["stored"] > stored)

    def reads_again() -> bool:
        site.forget_l1()
        site.hits(BEFORE[0])
        return site.circuit == "closed"

    wait_for(stores_again)
    wait_for(reads_again)
    last = next(fresh)
    site.store(last)
    site.settle()
    site.forget_l1()
    assert site.hits(last) == CHUNKS
    site.check_books()
