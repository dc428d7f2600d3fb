"""Rows between a chunk and pages by lmcache-native, where it is installed and fits."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

import numpy as np

from lmcache_kv_layout.errors import MemoryFault
from lmcache_kv_layout.row_job import Move, RowJob, RowMoves, Turn

ROW_MOVE_ABI: Final = 1
"""The calling convention that is spoken here; another one is not used."""
ELEMENTS: Final = {"float32": 0, "bfloat16": 1, "float16": 2}


def native_rows(required: bool) -> RowMoves | None:
    """The compiled implementation; without it `None`, or a `RuntimeError` where it is required."""
    try:
        native = import_module("lmcache_native")
    except ImportError:
        native = None
    abi = getattr(native, "ROW_MOVE_ABI", None)
    if native is not None and abi == ROW_MOVE_ABI:
        return RowMoves(_calling(native.read_rows), _calling(native.write_rows))
    if not required:
        return None
    reason = "is not installed" if native is None else f"moves rows by the convention {abi}, not {ROW_MOVE_ABI}"
    raise RuntimeError(f"lmcache-native {reason}; install the lmcache-native of this release, or copy with numpy")


def _calling(move_rows: Callable[..., int]) -> Move:
    def move(job: RowJob, turns: Sequence[Turn | None]) -> None:
        group, places = job.group, job.places
        pairs = [0 if turn is None else -len(turn.cos) if turn.neighbours else len(turn.cos) for turn in turns]
        numbers = [half for turn in turns if turn is not None for half in (turn.cos, turn.sin)]
        try:
            move_rows(
                job.bases,
                job.blocks,
                array("Q", [job.region]),
                group.kv_axis,
                group.layers,
                job.layers.start,
                job.layers.stop,
                group.slots_per_block,
                group.heads,
                group.head_bytes,
                group.block_stride,
                group.slot_stride,
                group.head_stride,
                group.blocks,
                job.chunk_slots,
                job.first,
                job.count,
                job.first_slot,
                ELEMENTS[group.dtype],
                array("Q", places.key.slots),
                array("Q", places.key.elements),
                array("Q", places.value.slots),
                array("Q", places.value.elements),
                array("q", pairs),
                np.concatenate(numbers or [np.zeros(0, np.float32)]),
            )
        except OSError as error:
            raise MemoryFault(errno.EFAULT, f"memory vanished while rows were moved ({error})") from error

    return move
