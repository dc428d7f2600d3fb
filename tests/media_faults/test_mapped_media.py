"""A device that is mapped breaks: its pages are not available, which the kernel reports by a signal that ends the process."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import StartServer
from tests.media_faults.adapters import mapped_device
from tests.media_faults.medium import CuedMedium
from tests.media_faults.site import CHUNKS, Site, options, wait_for

BEFORE = (1, 2)


def test_pages_that_are_not_available_are_misses_and_the_server_lives(
    medium: CuedMedium, start_server: StartServer
) -> None:
    adapter = mapped_device(medium.root)
    server = start_server(*options(adapter))
    site = Site(server)
    site.store(*BEFORE)
    site.settle()
    assert site.account["stored"] == len(BEFORE) * CHUNKS
    site.close()
    assert server.stop() == 0
    forget_pages(Path(adapter["device_path"]))

    server.start()
    site = Site(server)
    try:
        wait_for(lambda: (site.adapter["usage"] or {}).get("objects") == len(BEFORE) * CHUNKS)
        medium.fail("all", "EIO")
        assert [site.hits(number) for number in BEFORE] == [0, 0]
        site.store(11)
        site.settle()
        assert site.hits(11) == CHUNKS, "L1 hits do not go on"
        assert server.running
        medium.repair()
        site.forget_l1()
        for number in BEFORE:  # once it is asked again
            wait_for(lambda number=number: site.hits(number) == CHUNKS)  # type: ignore[misc]
        site.store(12)
        site.settle()
        assert site.hits(12) == CHUNKS
        site.check_books()
    finally:
        site.close()


def forget_pages(path: Path) -> None:
    """Out of the page cache, not as longer mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
