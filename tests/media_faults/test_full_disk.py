"""A file system of the kernel's own fills up under a running server, and gets room again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.media_faults.adapters import FS, FS_NATIVE_THREADS, MADE
from tests.media_faults.conftest import OpenSite
from tests.media_faults.medium import small_file_system
from tests.media_faults.site import CHUNKS, SLOT_BYTES, wait_for

ROOM_OBJECTS = 4 * CHUNKS


@pytest.mark.parametrize("adapter", [FS, FS_NATIVE_THREADS])
def test_a_full_disk_rejects_what_does_not_fit_and_loses_nothing(
    tmp_path: Path, open_site: OpenSite, adapter: str
) -> None:
    with small_file_system(tmp_path, ROOM_OBJECTS * SLOT_BYTES + 2**20) as root:
        ballast = root / "ballast"
        ballast.write_bytes(bytes(2 * CHUNKS * SLOT_BYTES))
        site = open_site(MADE[adapter](root))
        for number in range(1, 9):
            site.store(number)
            site.settle()
        account = site.account
        assert account["failed_by_outcome"] == {"rejected": account["failed"]}
        assert account["stored"] == site.adapter["usage"]["objects"] > CHUNKS
        assert site.circuit == "closed"
        site.forget_l1()
        found = [site.hits(number) for number in range(1, 9)]
        assert found[0] == CHUNKS, "what fitted is lost"
        assert sum(found) <= account["stored"]

        ballast.unlink()
        site.forget_l1()
        site.store(100)
        site.settle()
        wait_for(lambda: site.account["stored"] == account["stored"] + CHUNKS)
        site.forget_l1()
        assert site.hits(100) == CHUNKS
        site.check_books()
        site.stop()
