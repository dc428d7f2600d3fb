"""Probes of memory, shared memory, huge pages, limits, processors and pages, on machines of all kinds."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import replace

import pytest

from lmcache_core.app.open_arena import memory_limit
from lmcache_tools.doctor.engine_pages import engine_pages
from lmcache_tools.doctor.huge_pages import huge_pages
from lmcache_tools.doctor.limits import limits
from lmcache_tools.doctor.memory import memory
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.doctor.processors import processor_quota, processors
from lmcache_tools.doctor.shared_memory import shared_memory
from plugins.tools.tests.doctor.conftest import GIB, MakeContext


def only(results: Iterable[ProbeResult]) -> ProbeResult:
    (result,) = results
    return result


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nHugePages_Free: 100\n"


def test_memory_that_is_there(make_context: MakeContext) -> None:
    found = only(memory(make_context({"proc/meminfo": MEMINFO}, l1_size_gb=2)))
    assert found.level is Level.OK
    assert found.facts == {"needed_bytes": 5 * GIB // 2, "available_bytes": 8 * GIB, "limit_bytes": None}


def test_memory_that_is_not(make_context: MakeContext) -> None:
    found = only(memory(make_context({"proc/meminfo": MEMINFO}, l1_size_gb=9)))
    assert found.level is Level.WARN
    assert found.fix == "--l1-size-gb 7.5"


def test_a_machine_that_does_not_say(make_context: MakeContext) -> None:
    assert only(memory(make_context(l1_size_gb=1))).text.startswith("/proc/meminfo does not say")


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/pod/server\n", "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n"},
        {
            "proc/self/cgroup": "0::/pod/server\n",
            "sys/fs/cgroup/pod/server/memory.max": "max\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        },
        {
            "proc/self/cgroup": "5:cpu:/pod\n4:memory:/pod\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    ],
)
def test_the_smallest_limit_of_all_control_groups_counts(make_context: MakeContext, files: dict[str, str]) -> None:
    context = make_context({"proc/meminfo": MEMINFO, **files}, l1_size_gb=5)
    assert memory_limit(context.machine.root) == 4 * GIB
    found = only(memory(context))
    assert found.level is Level.FAIL
    assert "the kernel would end the server" in found.text
    assert found.fix == "--l1-size-gb 3.5"


def test_a_limit_that_is_tight_is_a_warning(make_context: MakeContext) -> None:
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{2 * GIB}\n"}
    found = only(memory(make_context({"proc/meminfo": MEMINFO, **files}, l1_size_gb=1.8)))
    assert (found.level, found.fix) == (Level.WARN, "--l1-size-gb 1.5")


def test_more_than_the_machine_has_fails_unless_it_is_asked_for(make_context: MakeContext) -> None:
    found = only(memory(make_context({"proc/meminfo": MEMINFO}, l1_size_gb=16)))
    assert (found.level, found.fix) == (Level.FAIL, "--l1-size-gb 15.5")
    assert "the machine has 16 GiB of memory" in found.text
    assert "--l1-overcommit" in found.remedy
    found = only(memory(make_context({"proc/meminfo": MEMINFO}, l1_size_gb=16, l1_overcommit=True)))
    assert found.level is Level.WARN


def test_shared_memory(make_context: MakeContext) -> None:
    assert only(shared_memory(make_context(free=3 * GIB, l1_size_gb=2))).level is Level.OK
    small = only(shared_memory(make_context(free=GIB, l1_size_gb=2)))
    assert small.level is Level.WARN
    assert "L1 of 2 GiB does not fit into /dev/shm, which has 1 GiB free" in small.text
    assert "--shm-size 3g" in small.remedy
    assert list(shared_memory(make_context(free=0, gds_l1_path="/mnt/nvme"))) == [], "L1 is elsewhere"
    assert (
        only(memory(make_context({"proc/meminfo": MEMINFO}, l1_size_gb=5000, gds_l1_path="/mnt/nvme"))).level
        is Level.OK
    )
    without = only(shared_memory(make_context(free=0, l1_shared_memory=False)))
    assert "--no-l1-shared-memory" in without.text


def test_huge_pages(make_context: MakeContext) -> None:
    assert only(huge_pages(make_context())).level is Level.OK
    denied = {"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always [never] deny force"}
    found = only(huge_pages(make_context(denied, l1_use_hugepages=True)))
    assert found.level is Level.WARN
    assert "mounted without huge pages" in found.text
    assert found.remedy.startswith("mount -o remount,huge=advise")
    forced = {"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always never [force]"}
    assert only(huge_pages(make_context(forced, l1_use_hugepages=True))).level is Level.OK
    reserved = {"proc/meminfo": "HugePages_Free: 1024\n"}
    private = make_context(reserved, l1_use_hugepages=True, l1_shared_memory=False, l1_size_gb=2)
    assert only(huge_pages(private)).text.startswith("1024 reserved ones")


def test_limits(make_context: MakeContext) -> None:
    files, locked = limits(make_context(limit=(65536, 65536)))
    assert (files.level, locked.level) == (Level.OK, Level.OK)
    assert next(limits(make_context(limit=(1024, 1024)))).level is Level.WARN
    assert next(limits(make_context(limit=(100, 100)))).level is Level.FAIL
    files, locked = limits(make_context(limit=(resource.RLIM_INFINITY,) * 2))
    assert "any number" in files.text
    assert locked.text.startswith("all of L1")


def test_processors(make_context: MakeContext) -> None:
    assert only(processors(make_context(processors=8))).level is Level.OK
    assert only(processors(make_context(processors=1))).level is Level.WARN
    crowded = only(processors(make_context(processors=2, max_workers=16)))
    assert crowded.level is Level.WARN
    assert crowded.fix == "--max-workers 2"
    limited = make_context({"sys/fs/cgroup/cpu.max": "150000 100000\n"})
    assert processor_quota(limited.machine) == 1.5
    assert "may use 1.5" in only(processors(limited)).text
    assert processor_quota(make_context({"sys/fs/cgroup/cpu.max": "max 100000\n"}).machine) is None


@pytest.mark.parametrize(
    ("page", "level", "fix"),
    [(64, Level.OK, ""), (48, Level.FAIL, "--chunk-size 288"), (512, Level.FAIL, "--chunk-size 512")],
)
def test_a_chunk_is_whole_pages_of_sglang(make_context: MakeContext, page: int, level: Level, fix: str) -> None:
    found = only(engine_pages(replace(make_context(chunk_size=256), page_tokens=page)))
    assert (found.level, found.fix) == (level, fix)
    assert not list(engine_pages(make_context()))
