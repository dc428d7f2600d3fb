"""L1's memory as the settings ask for it, or the next best with a warning."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_client.errors import ResourceError
from lmcache_core.app import open_arena as module
from lmcache_core.app.open_arena import open_arena, open_preallocation
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.l1.arena import Arena

MIB = 1 << 20


@pytest.fixture
def opened() -> Iterator[list[Arena]]:
    arenas: list[Arena] = []
    yield arenas
    for arena in arenas:
        arena.close()


def settings(**given: object) -> ServerSettings:
    defaults: dict[str, object] = {"l1_size_gb": 1 / 64, "shm_name": f"test-{uuid.uuid4().hex}"}
    return ServerSettings(**{**defaults, **given})  # type: ignore[arg-type]


def test_engines_map_it_unless_they_are_not_to(opened: list[Arena]) -> None:
    opened += [open_arena(settings(), "boot"), open_arena(settings(l1_shared_memory=False), "boot")]
    assert opened[0].segment is not None
    assert opened[1].segment is None
    assert [arena.size_bytes for arena in opened] == [16 * MIB, 16 * MIB]


def test_what_does_not_fit_is_private_memory_and_says_so(
    opened: list[Arena], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "shared_memory_shortage", lambda size: "there is none")
    opened.append(open_arena(settings(), "boot"))
    assert opened[0].segment is None
    assert "reason=there is none" in caplog.text


@pytest.mark.parametrize("shared", [True, False])
def test_huge_pages_are_a_wish(opened: list[Arena], shared: bool) -> None:
    opened.append(open_arena(settings(l1_use_hugepages=True, l1_shared_memory=shared), "boot"))
    assert opened[0].back(0, 4 * MIB)
    opened[0].region.view[:3] = b"abc"


def test_pages_are_placed_before_any_is_allocated(opened: list[Arena], monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[tuple[int, ...]] = []

    def bind(address: int, length: int, mode: int, nodes: tuple[int, ...]) -> None:
        placed.append((address, length, mode, *nodes))

    monkeypatch.setattr(module, "memory_nodes", lambda: (0, 1))
    monkeypatch.setattr(module, "bind_memory", bind)
    arena = open_arena(settings(l1_numa="interleave"), "boot")
    opened.append(arena)
    assert placed == [(arena.region.address, 16 * MIB, 3, 0, 1)]
    assert arena.backed_bytes == 0


def test_a_machine_that_refuses_to_place_them_goes_on_with_a_warning(
    opened: list[Arena], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bind(*arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(module, "memory_nodes", lambda: (0, 1))
    monkeypatch.setattr(module, "bind_memory", bind)
    opened.append(open_arena(settings(l1_numa="1"), "boot"))
    assert "not as --l1-numa asks for reason=Function not implemented" in caplog.text


def test_a_node_that_is_not_there_stops_the_start_before_anything_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_nodes", lambda: (0, 1))
    monkeypatch.setattr(module, "_memory", lambda settings, boot_id: pytest.fail("memory was taken"))
    with pytest.raises(ResourceError, match="memory node 7 is not there; this machine has 0, 1"):
        open_arena(settings(l1_numa="7"), "boot")


@pytest.mark.parametrize(
    ("given", "percent"),
    [({"l1_use_lazy": False}, 100), ({"l1_init_size_gb": 1 / 128}, 50), ({"l1_init_size_gb": 20}, 100)],
)
def test_the_start_is_all_of_it_or_as_much_as_was_asked_for(
    opened: list[Arena], given: dict[str, object], percent: int, caplog: pytest.LogCaptureFixture
) -> None:
    asked = settings(**given)
    arena = open_arena(asked, "boot")
    opened.append(arena)
    preallocation = open_preallocation(asked, arena, SystemClock())
    thread = threading.Thread(target=preallocation.run)
    with caplog.at_level(logging.INFO):
        thread.start()
        deadline = time.monotonic() + 10
        while "l1 is allocated percent=100" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.001)
        preallocation.stop()
        thread.join(10)
    assert arena.backed_bytes == 16 * MIB * percent // 100


SMALL_GROUP = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{100 * MIB}\n"}
SMALL_MACHINE = {"proc/meminfo": "MemTotal: 143360 kB\n", "sys/fs/cgroup/memory.max": "max\n"}


@pytest.mark.parametrize(
    ("files", "reason", "remedy"),
    [
        (
            SMALL_GROUP,
            "the control group may use 100 MiB",
            "raise the container's memory limit, or give --l1-overcommit",
        ),
        (
            SMALL_MACHINE,
            "the machine has 140 MiB of memory",
            "lower l1_size_gb to 0.01 or less, use a larger machine, or",
        ),
    ],
)
def test_more_than_there_is_is_refused_unless_it_is_asked_for(
    opened: list[Arena],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    files: dict[str, str],
    reason: str,
    remedy: str,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ResourceError) as refused:
        open_arena(settings(), "boot", root=tmp_path)
    assert str(refused.value).startswith("l1_size_gb: L1 of 16 MiB and the server itself (128 MiB) need more than")
    assert reason in str(refused.value)
    assert f"when L1 fills; {remedy}" in str(refused.value)
    opened.append(open_arena(settings(l1_overcommit=True), "boot", root=tmp_path))
    assert "as --l1-overcommit allows" in caplog.text
