"""Memory and the tiers below it: which are asked, when they are left alone, and what one that fails costs."""

from __future__ import annotations

import itertools
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.local.tests.parts import BLOCK, BLOCKS, CHUNK, fill, kv_cache, metadata, opened, slots
from lmcache_engine.pins import Pins

TOKENS = [(7 * i * i + 3) % 1000 for i in range(4 * CHUNK)]
THERE, ELSEWHERE = range(8), range(100, 108)
MEMORY, DISK = "LocalCPUBackend", "LocalDiskBackend"


def on_disk(folder: Path, **more: Any) -> dict[str, Any]:
    return {"local_disk": str(folder), "max_local_disk_size": 0.1, **more}


def drained(engine: Any) -> None:
    deadline = time.monotonic() + 30
    while engine.status()["store"]["backlog_bytes"] and time.monotonic() < deadline:
        time.sleep(0.01)


def damage(folder: Path, which: int) -> None:
    """Of the files that were written, the payload of one."""
    files = sorted(
        (each for each in folder.rglob("*") if each.stat().st_size > 4096), key=lambda each: each.stat().st_mtime_ns
    )
    with files[which].open("r+b") as file:
        file.seek(-16, 2)
        file.write(b"damaged bytes...")


def test_ranks_of_one_engine_have_one_configuration_and_a_folder_each(tmp_path: Path) -> None:
    ranks = [metadata(world_size=2, local_world_size=2, worker_id=each, local_worker_id=each) for each in (0, 1)]
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, ranks[0], **on_disk(tmp_path)) as one, opened(kv, ranks[1], **on_disk(tmp_path)) as two:
        for engine in (one, two):
            engine.store(TOKENS, slot_mapping=slots(THERE))
    for rank in reversed(ranks):
        with opened(kv, rank, **on_disk(tmp_path)) as engine:
            assert engine.lookup(TOKENS) == len(TOKENS)


def test_frozen_nothing_is_stored_and_only_memory_is_asked(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, **on_disk(tmp_path)) as engine:
        engine.store(TOKENS[: 2 * CHUNK], slot_mapping=slots(THERE))
        drained(engine)
        engine.clear()
        before = engine.status()
        engine.freeze(True)
        assert engine.lookup(TOKENS) == 0, "it is on disk alone"
        engine.store(TOKENS, slot_mapping=slots(THERE))
        after = engine.status()
        assert after["l1"]["cached"] == before["l1"]["cached"] == 0
        assert after["chunks"]["stored"] == before["chunks"]["stored"]
        engine.freeze(False)
        assert engine.lookup(TOKENS) == 2 * CHUNK
        engine.freeze(True)
        assert engine.lookup(TOKENS) == 2 * CHUNK, "now it is in memory"


def test_a_lookup_may_ask_memory_alone(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, **on_disk(tmp_path)) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        drained(engine)
        assert engine.lookup(TOKENS, search_range=[MEMORY]) == 4 * CHUNK
        engine.clear()
        assert engine.lookup(TOKENS, search_range=[MEMORY]) == 0
        with pytest.raises(ValueError, match=r"search_range.*alone, or all of LocalCPUBackend, LocalDiskBackend"):
            engine.lookup(TOKENS, search_range=[DISK])
        with pytest.raises(ValueError, match="no tier is called 'Disk'"):
            engine.lookup(TOKENS, search_range=["Disk"])
        assert engine.lookup(TOKENS, search_range=[MEMORY, DISK, "RemoteBackend"]) == 4 * CHUNK


def test_an_engine_may_retrieve_from_memory_alone(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, **on_disk(tmp_path, retrieve_locations=[MEMORY])) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        drained(engine)
        assert engine.lookup(TOKENS) == 4 * CHUNK
        engine.clear()
        assert engine.lookup(TOKENS) == 0
        assert not engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE)).any()
    with opened(kv, **on_disk(tmp_path)) as engine:
        assert engine.lookup(TOKENS) == 4 * CHUNK, "it was written"


@pytest.mark.parametrize("how", [{"local_cpu": False}, {"store_location": DISK}])
def test_memory_is_a_buffer_for_another_tier(how: dict[str, Any], tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, **on_disk(tmp_path, **how)) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        drained(engine)
        deadline = time.monotonic() + 10
        while engine.status()["l1"]["cached"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert engine.status()["l1"]["cached"] == 0
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE)).all()
        assert all(torch.equal(layer[100:108], layer[:8]) for layer in kv)


def test_a_tier_that_brings_less_than_it_said_ends_the_prefix_there(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    with opened(kv, **on_disk(tmp_path)) as engine:
        for end in range(1, 5):  # a file after the other
            engine.store(TOKENS[: end * CHUNK], slot_mapping=slots(THERE))
            drained(engine)
        engine.clear()
        damage(tmp_path, 2)
        assert engine.lookup(TOKENS) == 2 * CHUNK
        counts = engine.status()["l1"]
        assert counts["held"] == 0, "what was behind it is released"
        assert counts["state_counts_add_up"]
        assert engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE)).sum() == 2 * CHUNK
        assert all(torch.equal(layer[100:104], layer[:4]) for layer in kv)
        assert not any(layer[104:].any() for layer in kv)


def test_what_one_tier_cannot_bring_the_next_one_does(tmp_path: Path) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    both = on_disk(tmp_path / "disk", remote_url=f"file://{tmp_path / 'remote'}")
    with opened(kv, **both) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        drained(engine)
        engine.clear()
        damage(tmp_path / "disk", 1)
        assert engine.retrieve(TOKENS, slot_mapping=slots(ELSEWHERE)).all()
        assert all(torch.equal(layer[100:108], layer[:8]) for layer in kv)


def test_a_prompt_of_more_than_half_of_memory_is_brought_whole(tmp_path: Path) -> None:
    kv = kv_cache()
    tokens = [each % 997 for each in range(BLOCKS * BLOCK)]
    fill(kv, range(BLOCKS), tokens)
    with opened(kv, **on_disk(tmp_path, max_local_cpu_size=0.0013)) as engine:  # 1.3 MiB, for 1 MiB and header pages
        for end in range(0, len(tokens) + 1, 32 * CHUNK):  # half of memory may wait for a tier
            engine.store(tokens[:end], slot_mapping=slots(range(BLOCKS)))
            drained(engine)
        engine.clear()
        assert engine.lookup(tokens) == len(tokens)
        assert len(tokens) // CHUNK * 8192 > engine.status()["prefetch"]["l1_max_bytes"] * 1.3


def test_a_tier_that_fails_is_left_alone_and_tried_again(tmp_path: Path) -> None:
    folder, away = tmp_path / "kv", tmp_path / "away"
    kv = kv_cache()
    fill(kv, THERE, TOKENS)

    def is_paused(wanted: bool, ask: Callable[[int], object]) -> bool:
        deadline = time.monotonic() + 60
        for number in itertools.count():
            names = {each["name"] for each in engine.status()["conditions"]}
            if ("adapter_paused" in names) is wanted or time.monotonic() > deadline:
                return ("adapter_paused" in names) is wanted
            ask(number)
            time.sleep(0.05)
        raise AssertionError

    def store(number: int) -> None:
        engine.store([number, *TOKENS[1:]], slot_mapping=slots(THERE))

    with opened(kv, remote_url=f"file://{folder}") as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        drained(engine)
        folder.rename(away)
        folder.write_text("no folder")
        assert is_paused(True, store)
        assert engine.is_healthy(), "memory serves"
        began = time.monotonic()
        assert engine.lookup(TOKENS) == 4 * CHUNK
        assert engine.lookup([2**20, *TOKENS]) == 0
        assert time.monotonic() - began < 2, "no call waits for it"
        folder.unlink()
        away.rename(folder)
        assert is_paused(False, lambda number: store(1000 + number))
        engine.clear()
        assert engine.lookup(TOKENS) == 4 * CHUNK


def test_a_disk_that_is_full_is_said_and_memory_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kv = kv_cache()
    fill(kv, THERE, TOKENS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def is_said() -> bool:
        return "medium_full" in {each["name"] for each in engine.status()["conditions"]}

    with caplog.at_level(logging.WARNING), opened(kv, remote_url=f"file://{tmp_path / 'kv'}") as engine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # a write of more fails, as on a full disk
        try:
            deadline, number = time.monotonic() + 30, 0
            while not is_said() and time.monotonic() < deadline:
                number += 1
                engine.store([number, *TOKENS[1:]], slot_mapping=slots(THERE))
                time.sleep(0.05)
            assert is_said()
            assert engine.is_healthy()
            assert engine.lookup([number, *TOKENS[1:]]) == 4 * CHUNK
            assert engine.retrieve([number, *TOKENS[1:]], slot_mapping=slots(ELSEWHERE)).sum() == 4 * CHUNK
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert any("medium_full" in message for message in caplog.messages)


def test_a_pin_that_is_not_undone_ends_by_itself_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    kv = kv_cache()
    with opened(kv, pin_timeout_sec=0.5, pin_check_interval_sec=0.1) as engine:
        engine.store(TOKENS, slot_mapping=slots(THERE))
        assert engine.lookup(TOKENS, pin=True, lookup_id="leaked") == 4 * CHUNK
        assert engine.lookup(TOKENS, pin=True, lookup_id="undone") == 4 * CHUNK
        engine.lookup_unpin("undone")
        assert engine.status()["lookup_pins"] == {"open": 1, "timed_out": 0}
        assert engine.clear() == 0
        deadline = time.monotonic() + 20
        while engine.status()["l1"]["held"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engine.status()["lookup_pins"] == {"open": 0, "timed_out": 1}
        assert "pins ended by themselves count=1 lookup_id=leaked" in caplog.text
        assert engine.clear() == 4
        engine.lookup_unpin("leaked")


def test_pins_are_looked_at_no_more_often_than_the_interval_says(caplog: pytest.LogCaptureFixture) -> None:
    time_now = [0.0]
    pins = Pins(300, 30, lambda: time_now[0])
    with caplog.at_level(logging.WARNING):
        pins.add("a")
        time_now[0] = 299
        pins.warn_late()
        pins.add("b")
        time_now[0] = 310
        pins.warn_late()
        assert pins.status() == {"open": 2, "timed_out": 0}
        time_now[0] = 330
        pins.warn_late()
    assert pins.status() == {"open": 1, "timed_out": 1}
    assert len(caplog.records) == 1
