"""Arguments that cannot be are a ValueError or a TypeError that names them, before a byte has moved."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from libs.native.tests.paged_memory import Job, Shape

native = pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")

NAMES = (
    *("direction", "bases", "blocks", "objects", "kv_axis", "layers", "first_layer", "end_layer", "slots_per_block"),
    *("heads", "head_bytes", "block_stride", "slot_stride", "head_stride", "skip_slots", "threads"),
)


def a_job() -> Job:
    return Job(Shape.token_major(2, 2, 4, 2, 64), [3, 0, 1, 2], 2, (0, 2))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("direction", 2, "direction"),
        ("direction", -1, "direction"),
        ("kv_axis", 0, "kv_axis"),
        ("kv_axis", 3, "kv_axis"),
        ("kv_axis", 1, "bases must have"),
        ("layers", 0, "layers"),
        ("layers", 3, "bases must have"),
        ("layers", 2**62, "layers"),
        ("first_layer", -1, "first_layer"),
        ("first_layer", 3, "layers 3 to 2"),
        ("end_layer", 3, "layers 0 to 3"),
        ("end_layer", -1, "end_layer"),
        ("slots_per_block", 0, "slots_per_block"),
        ("slots_per_block", -(2**63), "slots_per_block"),
        ("slots_per_block", 2**62, "too large"),
        ("heads", 0, "heads"),
        ("heads", 2**63 - 1, "too large"),
        ("head_bytes", 0, "head_bytes"),
        ("head_bytes", 2**63 - 1, "too large"),
        ("head_bytes", 2**56, "too large"),
        ("block_stride", -1, "block_stride"),
        ("block_stride", 2**63 - 1, "too large"),
        ("slot_stride", -64, "slot_stride"),
        ("slot_stride", 2**62, "too large"),
        ("head_stride", -64, "head_stride"),
        ("head_stride", 2**63 - 1, "too large"),
        ("skip_slots", -1, "skip_slots"),
        ("skip_slots", 9, "skip_slots"),
        ("threads", 0, "threads"),
        ("threads", 257, "threads"),
        ("bases", array("Q"), "bases must have"),
        ("bases", array("Q", [4096] * 3), "bases must have"),
        ("bases", array("Q", [4096, 4096, 0, 4096]), r"bases\[2\]"),
        ("bases", array("Q", [4096, 2**64 - 1, 4096, 4096]), r"bases\[1\]"),
        ("bases", array("q", [4096] * 4), "bases"),
        ("bases", array("I", [4096] * 8), "bases"),
        ("bases", array("d", [4096.0] * 4), "bases"),
        ("bases", memoryview(array("Q", [4096] * 8))[::2], "bases"),
        ("bases", memoryview(array("Q", [4096] * 4)).cast("B").cast("Q", (2, 2)), "bases"),
        ("blocks", array("q"), "blocks"),
        ("blocks", array("q", [0, 1, 2]), "blocks"),
        ("blocks", array("q", [0, 1, -2, 3]), r"blocks\[2\]"),
        ("blocks", array("q", [0, 1, 2**62, 3]), "too large"),
        ("blocks", array("Q", [0, 1, 2, 3]), "blocks"),
        ("blocks", b"\0" * 32, "blocks"),
        ("objects", array("Q"), "blocks"),
        ("objects", array("Q", [4096, 0]), r"objects\[1\]"),
        ("objects", array("Q", [4096, 2**64 - 64]), r"objects\[1\]"),
        ("objects", array("Q", [4096] * 3), "blocks"),
    ],
)
def test_the_name_is_in_the_refusal(name: str, value: Any, said: str) -> None:
    job = a_job()
    before = job.found()
    for direction in (native.GATHER, native.SCATTER):
        arguments = job.arguments(direction)
        arguments[NAMES.index(name)] = value
        with pytest.raises(ValueError, match=said):
            native.copy_pages(*arguments)
    assert job.found() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("bases", "blocks", "objects") for value in (None, [0, 1], 4096, "text")),
        *((name, value) for name in NAMES[4:] for value in (None, 1.5, "1", 2**63)),
    ],
)
def test_other_types_are_refused(name: str, value: Any) -> None:
    job = a_job()
    before = job.found()
    arguments = job.arguments(native.GATHER)
    arguments[NAMES.index(name)] = value
    with pytest.raises(TypeError):
        native.copy_pages(*arguments)
    assert job.found() == before
