"""What the router's thread may copy itself: only what is over at once, and never what could wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmcache_core import ELSEWHERE, MemoryRegion, Worker
from lmcache_devkit.module_bench import BenchCall
from lmcache_transfer_torch.messages import EngineGroupInfo
from plugins.transfer_torch.tests.cue_site import BLOCKS, NO, TOKENS, WORKER, YES, Site

CHUNKS = 3
TWO_GROUPS = [EngineGroupInfo(0, (0,), 4), EngineGroupInfo(1, (1,), 4, 16)]
OBJECT_BYTES = 2 * len(TOKENS) // CHUNKS * 2 * 32 * 4
"""Layers, tokens of a chunk, heads, head size and the bytes of a number."""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    site.device.swift_bytes = CHUNKS * OBJECT_BYTES
    yield site
    site.close()


def at_once(site: Site, name: str, instance: int = WORKER, request: str = "r") -> object:
    """Ask on the router's thread."""
    more = [0] if name == "retrieve" else []
    return site.handlers[name].function(
        BenchCall(b"c", may_wait=False), site.key(request), instance, BLOCKS, b"", *more
    )


def test_a_small_transfer_is_copied_at_once(site: Site) -> None:
    assert site.store() == YES  # pages are there from now on
    site.bench.storage.clear(True)
    assert at_once(site, "store") == YES
    assert at_once(site, "retrieve") == YES
    assert (len(site.device.jobs), site.held()) == (3, (0, 0))


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_a_byte_more_is_for_another_thread(site: Site, name: str) -> None:
    assert site.store() == YES
    site.device.swift_bytes -= 1
    assert at_once(site, name) is ELSEWHERE
    assert (len(site.device.jobs), site.held()) == (1, (0, 0))


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_others_do_not_wait_for_a_copy(site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.store() == YES
    monkeypatch.setattr(BenchCall, "others_wait", True)
    assert at_once(site, name) is ELSEWHERE


def test_pages_are_allocated_by_another_thread(site: Site) -> None:
    assert at_once(site, "store") is ELSEWHERE
    assert (site.device.jobs, site.held()) == ([], (0, 0))


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_a_disk_is_waited_for_by_another_thread(name: str) -> None:
    site = Site(MemoryRegion(1, 1, memoryview(b""), descriptor=3))
    assert site.store() == YES
    site.device.swift_bytes = 1 << 30
    assert at_once(site, name) is ELSEWHERE
    site.close()


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_an_unknown_worker_is_refused_at_once(site: Site, name: str) -> None:
    assert at_once(site, name, WORKER + 1) == NO


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_a_worker_that_registers_between_two_looks_is_for_another_thread(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first look there was nothing to move for it; what it registered is of any size and on any device."""
    assert site.store() == YES
    if name == "store":
        site.bench.storage.clear(True)
    site.device.swift_bytes = 0
    real, looks = site.module._workers.find, list[Worker]()

    def find(worker: Worker) -> object:
        looks.append(worker)
        return real(worker) if len(looks) > 1 else None

    monkeypatch.setattr(site.module._workers, "find", find)
    assert at_once(site, name) is ELSEWHERE
    assert (len(site.device.jobs), site.held()) == (1, (0, 0))


def test_room_for_each_group_alone_is_not_room_for_all() -> None:
    """Objects of both groups are of one size, and take their slots from the same memory."""
    site = Site(settings={"separate_object_groups": True}, groups=TWO_GROUPS)
    site.device.swift_bytes = 1 << 30
    blocks = [BLOCKS[0], BLOCKS[0]]
    for number in range(1, 11):
        tokens = [1000 * number + token for token in TOKENS]
        assert site.call("store", site.key(f"r{number}", tokens=tokens), WORKER, blocks, b"") == YES
    counts = site.bench.storage.state_counts()
    assert CHUNKS <= counts.free < 2 * CHUNKS
    call = BenchCall(b"c", may_wait=False)
    assert site.handlers["store"].function(call, site.key(), WORKER, blocks, b"") is ELSEWHERE
    assert (site.cached(), site.held()) == (counts.cached, (0, 0))
    site.close()
