"""A million small objects: serving at once, true soon, and small in memory."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest
import xxhash

from lmcache_core import HEADER_BYTES, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import L2Driver
from lmcache_l2_raw_block.adapter import open_raw_block
from lmcache_l2_raw_block.config import RawBlockSettings
from lmcache_object_slots import meta_bytes_for
from plugins.l2_raw_block.tests.conftest import known_usage

COUNT = int(os.environ.get("LMCACHE_TEST_SLOTS", "1000000"))
SLOT_BYTES = 4608
META_BYTES = meta_bytes_for(COUNT)
PAYLOAD = b"a small object"
OBJECT_BYTES = HEADER_BYTES + len(PAYLOAD)
MEMORY_BYTES_MAX = 200
TIMEOUT_SECONDS = 600.0


def settings(path: Path, **more: object) -> RawBlockSettings:
    fields = {"slot_bytes": SLOT_BYTES, "block_align": 512, "meta_total_bytes": META_BYTES}
    return RawBlockSettings.model_validate({"device_path": str(path), **fields, **more})


def fill(path: Path) -> None:
    """An object into each slot, behind the adapter's back: a store each would take longer than all the rest."""
    first = object_key(0)
    run = bytearray(BorrowedMemory(2 * HEADER_BYTES).sealed(first, PAYLOAD).view)
    hash_at = run.index(first.canonical)
    with path.open("r+b") as file:
        file.seek(META_BYTES)
        for start in range(0, COUNT, 512):
            piece = bytearray()
            for number in range(start, min(start + 512, COUNT)):
                run[hash_at : hash_at + 32] = number.to_bytes(32, "little")
                run[HEADER_BYTES - 16 : HEADER_BYTES] = bytes(16)
                run[HEADER_BYTES - 16 : HEADER_BYTES] = xxhash.xxh3_128_digest(run[:HEADER_BYTES])
                piece += run.ljust(SLOT_BYTES, b"\0")
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_objects(tmp_path: Path) -> None:
    """Writes and reads 4.3 GiB.  Says how long things took; on a machine with other work to do that proves nothing."""
    path = tmp_path / "device"
    memory = BorrowedMemory(16 * 2**20)
    with path.open("wb") as file:
        file.truncate(META_BYTES + COUNT * SLOT_BYTES)

    def opened(what: str, **more: object) -> L2Driver:
        start, cpu = time.monotonic(), time.process_time()
        driver = L2Driver(open_raw_block(settings(path, **more), adapter_context(memory, name="raw_block")))
        serving = time.monotonic() - start
        usage = known_usage(driver, TIMEOUT_SECONDS)
        known, cpu = time.monotonic() - start, time.process_time() - cpu
        print(f"\n{what}: serves after {serving:.2f} s, true after {known:.1f} s ({cpu:.1f} s of CPU), {usage}")
        return driver

    opened("new device").close(60)
    fill(path)
    before = resident_bytes()
    recovered = opened("without a checkpoint", meta_verify_on_load=True)
    each = (resident_bytes() - before) / COUNT
    print(f"{each:.0f} bytes of memory for each object")
    assert known_usage(recovered) == (COUNT * OBJECT_BYTES, COUNT * OBJECT_BYTES, COUNT)
    assert each < MEMORY_BYTES_MAX
    start = time.monotonic()
    recovered.close(60)
    print(f"closed, with a checkpoint, in {time.monotonic() - start:.2f} s")
    again = opened("after a clean end")
    assert known_usage(again).objects == COUNT
    for number in (0, 1, COUNT // 2, COUNT - 1):
        buffer = memory.lend(OBJECT_BYTES)
        assert again.load((object_key(number), buffer)) == (Outcome.DONE,)
        assert buffer.view[HEADER_BYTES:] == PAYLOAD
    again.close(60)
    path.unlink()
