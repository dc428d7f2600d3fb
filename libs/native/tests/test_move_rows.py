"""Moves of rows: arguments that cannot be are refused by name, and no byte beyond the object or the pages is touched.

What is written is held against float64 in libs/kv_layout/tests/test_chunk_rows.py.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from array import array
from typing import Any

import pytest

from libs.native.tests.paged_memory import Memory, pattern

native = pytest.importorskip("lmcache_native", reason="lmcache-native is not installed")
if not hasattr(native, "write_rows"):
    pytest.skip("lmcache-native is older than its source", allow_module_level=True)

LAYERS, SLOTS, HEADS, SIZE, BLOCKS = 2, 4, 2, 8, 3
ROW = 2 * SIZE
BLOCK = SLOTS * HEADS * ROW * 2


def turns(*pairs: int) -> array[float]:
    return array("f", [1.0] * sum(2 * abs(count) for count in pairs))


class Job:
    """Six slots of an object of two blocks, from the second on, and from the fourth slot of block 2 on; bfloat16, fused."""

    def __init__(self) -> None:
        self.pages = Memory(pattern(LAYERS * BLOCKS * BLOCK, 1))
        self.object = Memory(pattern(LAYERS * 2 * BLOCK, 2))
        self.arguments: dict[str, Any] = {
            "bases": array("Q", [self.pages.address, self.pages.address + BLOCKS * BLOCK]),
            "blocks": array("q", [2, 0, 1]),
            "object": array("Q", [self.object.address]),
            "kv_axis": 1,
            "layers": LAYERS,
            "first_layer": 0,
            "end_layer": LAYERS,
            "slots_per_block": SLOTS,
            "heads": HEADS,
            "head_bytes": 2 * ROW,
            "block_stride": BLOCK,
            "slot_stride": 2 * ROW,
            "head_stride": SLOTS * 2 * ROW,
            "page_blocks": BLOCKS,
            "object_slots": 2 * SLOTS,
            "first_slot": 1,
            "count": 6,
            "first_page_slot": 3,
            "element": native.BFLOAT16,
            "key_slots": array("Q", range(SLOTS)),
            "key_elements": array("Q", range(0, SLOTS * SIZE, SLOTS)),
            "value_slots": array("Q", range(SLOTS * SIZE, 2 * SLOTS * SIZE, SIZE)),
            "value_elements": array("Q", range(SIZE)),
            "pairs": array("q", [4, -3]),
            "turns": turns(4, -3),
        }

    def found(self) -> tuple[bytes, bytes]:
        return self.pages.whole, self.object.whole


WAYS = pytest.mark.parametrize("move", [native.read_rows, native.write_rows])


@WAYS
def test_it_writes_what_it_says(move: Any) -> None:
    job = Job()
    before = job.found()
    assert move(*job.arguments.values()) == LAYERS * 6 * HEADS * ROW * 2
    written = [was != now for was, now in zip(before, job.found(), strict=True)]
    assert written == [move is native.read_rows, move is native.write_rows]


BIG = 2**62


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("element", 3, "element must be"),
        ("element", -1, "element must be"),
        ("kv_axis", 0, "kv_axis"),
        ("kv_axis", 3, "kv_axis"),
        ("kv_axis", 2, "bases must have"),
        ("layers", 0, "layers"),
        ("layers", 3, "bases must have"),
        ("layers", 2**63 - 1, "bases must have"),
        ("first_layer", -1, "first_layer"),
        ("first_layer", 3, "layers 3 to 2"),
        ("first_layer", 1, "pairs must have one number for each of 1 layers"),
        ("end_layer", 3, "layers 0 to 3"),
        ("end_layer", -1, "end_layer"),
        ("slots_per_block", 0, "slots_per_block"),
        ("slots_per_block", 5, "a block has 5 slots"),
        ("slots_per_block", BIG, "a block has"),
        ("heads", 0, "heads"),
        ("heads", BIG, "too large"),
        ("head_bytes", 0, "head_bytes"),
        ("head_bytes", 31, "not whole elements"),
        ("head_bytes", 30, "value has the place 63"),
        ("head_bytes", BIG, "too large"),
        ("block_stride", -1, "block_stride"),
        ("block_stride", BIG, "too large"),
        ("slot_stride", -1, "slot_stride"),
        ("slot_stride", BIG, "too large"),
        ("head_stride", -1, "head_stride"),
        ("head_stride", BIG, "too large"),
        ("page_blocks", 0, "page_blocks"),
        ("page_blocks", 2, r"blocks\[0\] is 2, and there are 2"),
        ("page_blocks", 2**63 - 1, "too large"),
        ("object_slots", 0, "object_slots"),
        ("object_slots", 4, "slots 1 to 7 are not within the 4"),
        ("object_slots", 9, "not whole blocks"),
        ("object_slots", BIG, "too large"),
        ("first_slot", -1, "first_slot"),
        ("first_slot", 3, "slots 3 to 9 are not within the 8"),
        ("first_slot", 2**63 - 1, "too large"),
        ("count", -1, "count"),
        ("count", 8, "slots 1 to 9 are not within the 8"),
        ("first_page_slot", -1, "first_page_slot"),
        ("first_page_slot", 7, "slots 7 to 13 are not within the 12"),
        ("first_page_slot", 2**63 - 1, "too large"),
        ("bases", array("Q", [4096]), "bases must have"),
        ("bases", array("Q", [4096, 0]), r"bases\[1\]"),
        ("bases", array("Q", [2**64 - 1, 4096]), r"bases\[0\]"),
        ("bases", array("d", [1.0, 1.0]), "bases must be"),
        ("blocks", array("q", [2]), "slots 3 to 9 are not within the 4"),
        ("blocks", array("q", [2, 0, -1]), r"blocks\[2\] is -1"),
        ("blocks", array("q", [2, 0, 3]), r"blocks\[2\] is 3"),
        ("blocks", array("q", [2, 0, 2**63 - 1]), r"blocks\[2\]"),
        ("object", array("Q", [0]), r"object\[0\] is 0"),
        ("object", array("Q", [2**64 - 8]), r"object\[0\]"),
        ("object", array("Q", [4096, 4096]), "object must be one address"),
        ("key_slots", array("Q", range(3)), "key has places for 3 slots"),
        ("key_slots", array("Q", [0, 1, 2, 64]), "key has the place 92"),
        ("key_slots", array("Q", [0, 1, 2, 2**64 - 1]), "too large"),
        ("key_elements", array("Q"), "of 0 elements"),
        ("key_elements", array("Q", [0] * 17), "of 17 elements"),
        ("key_elements", array("Q", [0] * 7 + [61]), "key has the place 64"),
        ("value_slots", array("Q", [0, 1, 2, 57]), "value has the place 64"),
        ("value_elements", array("Q", [2**63]), "too large"),
        ("value_elements", array("q", range(8)), "value_elements must be"),
        ("pairs", array("q", [4]), "pairs must have one number for each of 2 layers"),
        ("pairs", array("q", [4, 5]), "pairs has 5, and a head 8 elements"),
        ("pairs", array("q", [4, -(2**63)]), "pairs has"),
        ("turns", turns(4, 4), "turns must have 14 numbers, and has 16"),
        ("turns", array("f"), "turns must have 14 numbers, and has 0"),
        ("turns", array("d", [1.0] * 14), "turns must be one contiguous row of float32"),
    ],
)
@WAYS
def test_the_name_is_in_the_refusal(move: Any, name: str, value: Any, said: str) -> None:
    job = Job()
    before = job.found()
    with pytest.raises(ValueError, match=said):
        move(*{**job.arguments, name: value}.values())
    assert job.found() == before


@WAYS
@pytest.mark.parametrize("value", [None, 1.5, "1"])
def test_other_types_are_refused(move: Any, value: Any) -> None:
    job = Job()
    before = job.found()
    for name in job.arguments:
        with pytest.raises(TypeError):
            move(*{**job.arguments, name: value}.values())
    assert job.found() == before


PRELUDE = """
import ctypes, errno, mmap, os
from array import array
import lmcache_native as native

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE

def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

def move(way, element, size, slots, order, pairs, pages, chunk, first, count, target, blocks, turn=0.5):
    item = 4 if element == native.FLOAT32 else 2
    row = 2 * size
    if order == "columns":
        places = (range(slots), range(0, slots * size, slots), range(slots * size, 2 * slots * size, size), range(size))
    elif order == "rows":
        places = (range(0, slots * row, row), range(size), range(size, slots * row, row), range(size))
    else:
        tile = [slot // 2 * 2 * size + slot % 2 for slot in range(slots)]
        places = (tile, range(0, 2 * size, 2), [slots * size + slot for slot in tile], range(0, 2 * size, 2))
    return way(
        array("Q", [pages]), array("q", blocks), array("Q", [chunk]), 1, 1, 0, 1, slots, 1, row * item, slots * row * item,
        row * item, slots * row * item, max(blocks) + 1, 2 * slots, first, count, target, element,
        *(array("Q", each) for each in places), array("q", [pairs]), array("f", [turn] * (2 * abs(pairs))))
"""


def run(script: str) -> str:
    source = PRELUDE + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def test_nothing_is_touched_beside_the_object_and_the_pages() -> None:
    """Both end, and begin, where no memory is: a byte more is the end of the process."""
    script = """
    def guarded(size):
        whole = -(-size // PAGE) * PAGE
        memory = mmap.mmap(-1, whole + 2 * PAGE)
        start = address(memory)
        for guard in (start, start + PAGE + whole):
            assert libc.mprotect(ctypes.c_void_p(guard), PAGE, 0) == 0
        return memory, (start + PAGE, start + PAGE + whole - size)

    calls = 0
    for element in (native.FLOAT32, native.BFLOAT16, native.FLOAT16):
        for slots, size in ((4, 6), (16, 10), (32, 64), (20, 34)):
            block = slots * 2 * size * (4 if element == native.FLOAT32 else 2)
            kept = [guarded(2 * block) for _ in range(2)]
            for order in ("columns", "rows", "tiles"):
                for pairs in (0, size // 2, -(size // 2), size // 2 - 1):
                    for chunk in kept[0][1]:
                        for pages in kept[1][1]:
                            for first, count, target in ((0, 2 * slots, 0), (0, slots, slots), (slots, slots, 0), (2, slots, 1),
                                                         (2 * slots - 1, 1, 2 * slots - 1), (1, 2 * slots - 1, 1)):
                                for way in (native.read_rows, native.write_rows):
                                    move(way, element, size, slots, order, pairs, pages, chunk, first, count, target, [0, 1])
                                    calls += 1
    print(calls)
    """
    assert run(script) == f"{3 * 4 * 3 * 4 * 4 * 6 * 2}\n"


@pytest.mark.parametrize("lost", ["pages", "chunk"])
@pytest.mark.parametrize("way", ["read_rows", "write_rows"])
def test_memory_that_vanishes_costs_the_move_and_not_the_process(way: str, lost: str) -> None:
    script = f"""
    file = os.memfd_create("lost")
    block = 32 * 2 * 64 * 4
    os.ftruncate(file, 2 * block)
    lost, other = mmap.mmap(file, 2 * block), mmap.mmap(-1, 2 * block)
    pages, chunk = (lost, other) if {lost!r} == "pages" else (other, lost)
    call = (native.{way}, native.FLOAT32, 64, 32, "columns", 32, address(pages), address(chunk), 0, 64, 0, [1, 0])
    move(*call)
    os.ftruncate(file, PAGE)
    try:
        move(*call)
    except OSError as error:
        assert error.errno == errno.EFAULT
        print("survived")
    os.ftruncate(file, 2 * block)
    move(*call)
    """
    assert run(script) == "survived\n"
