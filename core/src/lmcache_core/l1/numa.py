"""On which memory nodes of the machine L1's pages lie.

Without a policy a page lies on the node of the thread that allocates it, which is mostly the one thread that grows L1:
all of L1 on one node, until that is full.  Interleaving gives engines on every node the same, middling distance.
What each of them gains on a machine of several nodes has not been measured: the calls were run on one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lmcache_client.errors import ResourceError

NODES_ROOT = Path("/sys/devices/system/node")
_PREFERRED, _INTERLEAVE, _LOCAL = 1, 3, 4  # linux/mempolicy.h


class Placement(NamedTuple):
    """A memory policy as the kernel takes it."""

    mode: int
    nodes: tuple[int, ...]


def memory_nodes(root: Path = NODES_ROOT) -> tuple[int, ...]:
    """The nodes that have memory; one, where the machine says nothing about it."""
    try:
        text = (root / "has_memory").read_text().strip()
    except OSError:
        return (0,)
    nodes: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return tuple(nodes) or (0,)


def choose_placement(wish: str, nodes: Sequence[int]) -> Placement | None:
    """What `--l1-numa` means on a machine with these nodes; None where there is nothing to choose.  A node that is
    full passes pages on to the others rather than fail.  Raises ResourceError for a node that is not there."""
    if wish.isdigit() and int(wish) not in nodes:
        there = ", ".join(map(str, nodes))
        raise ResourceError(f"l1_numa: memory node {int(wish)} is not there; this machine has {there}")
    if wish == "off" or len(nodes) == 1:
        return None
    if wish == "interleave":
        return Placement(_INTERLEAVE, tuple(nodes))
    return Placement(_LOCAL, ()) if wish == "local" else Placement(_PREFERRED, (int(wish),))
