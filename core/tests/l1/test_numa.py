"""Which nodes L1 lies on: from what the machine says of itself, and as the kernel understood it."""

from __future__ import annotations

import ctypes
import errno
import platform
from pathlib import Path

import pytest

from lmcache_client.errors import ResourceError
from lmcache_client.memory_calls import bind_memory
from lmcache_core.l1.arena import anonymous_arena
from lmcache_core.l1.pages import Placement, choose_placement, memory_nodes

PREFERRED, INTERLEAVE, LOCAL = 1, 3, 4


@pytest.mark.parametrize(("text", "nodes"), [("0\n", (0,)), ("0-1\n", (0, 1)), ("0,2-4,7\n", (0, 2, 3, 4, 7))])
def test_nodes_are_those_that_have_memory(tmp_path: Path, text: str, nodes: tuple[int, ...]) -> None:
    (tmp_path / "has_memory").write_text(text)
    assert memory_nodes(tmp_path) == nodes


def test_a_machine_that_says_nothing_has_one_node(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path) == (0,)
    (tmp_path / "has_memory").write_text("\n")
    assert memory_nodes(tmp_path) == (0,)


@pytest.mark.parametrize(
    ("wish", "placement"),
    [
        ("off", None),
        ("interleave", Placement(INTERLEAVE, (0, 2))),
        ("local", Placement(LOCAL, ())),
        ("2", Placement(PREFERRED, (2,))),
    ],
)
def test_wishes_on_a_machine_of_two_nodes(wish: str, placement: Placement | None) -> None:
    assert choose_placement(wish, (0, 2)) == placement


@pytest.mark.parametrize("wish", ["off", "interleave", "local", "0"])
def test_there_is_nothing_to_choose_with_one_node(wish: str) -> None:
    assert choose_placement(wish, (0,)) is None


@pytest.mark.parametrize("nodes", [(0,), (0, 2)])
def test_a_node_that_is_not_there_is_named(nodes: tuple[int, ...]) -> None:
    with pytest.raises(ResourceError, match=r"l1_numa: memory node 1 is not there; this machine has 0"):
        choose_placement("1", nodes)


def policy_of(address: int) -> tuple[int, int]:
    """(mode, first word of the node mask) of the memory at an address."""
    libc, mode, mask = ctypes.CDLL(None), ctypes.c_int(), (ctypes.c_ulong * 16)()
    of_address = ctypes.c_ulong(2)
    libc.syscall(239, ctypes.byref(mode), mask, ctypes.c_ulong(1024), ctypes.c_void_p(address), of_address)
    return mode.value, mask[0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks the kernel by the number of its call there")
@pytest.mark.parametrize(("mode", "nodes", "mask"), [(PREFERRED, (0,), 1), (INTERLEAVE, (0,), 1), (LOCAL, (), 0)])
def test_the_kernel_has_understood(mode: int, nodes: tuple[int, ...], mask: int) -> None:
    arena = anonymous_arena(1 << 20)
    try:
        bind_memory(arena.region.address, arena.size_bytes, mode, nodes)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            pytest.skip("this kernel knows no memory nodes")
        raise
    else:
        assert policy_of(arena.region.address) == (mode, mask)
        arena.region.view[:3] = b"abc"
    finally:
        arena.close()


def test_a_node_that_the_kernel_does_not_know_is_an_error() -> None:
    arena = anonymous_arena(1 << 20)
    with pytest.raises(OSError, match=r"."):
        bind_memory(arena.region.address, arena.size_bytes, PREFERRED, (1000,))
    arena.close()


def test_an_architecture_whose_call_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError) as caught:
        bind_memory(0, 4096, PREFERRED, (0,))
    assert caught.value.errno == errno.ENOSYS
