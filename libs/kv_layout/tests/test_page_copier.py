"""Copies are checked as a whole before the first byte moves, and say what went wrong."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from libs.kv_layout.tests.implementations import IMPLEMENTATIONS
from libs.kv_layout.tests.reference_pages import ReferencePages, Sizes, random_content
from lmcache_kv_layout import LayoutError, LayoutHints, MemoryFault, PageCopier, TensorView, detect_groups
from lmcache_kv_layout.native_pages import PAGE_COPY_ABI

SIZES = Sizes(layers=2, blocks=4, slots=3, heads=2, row=4, dtype="uint8")
HUGE = 2**64


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
class TestChecks:
    @pytest.mark.parametrize(
        ("wrong", "reason"),
        [
            ({"bases": [4096]}, "1 bases; 1 x 2 layers need 2"),
            ({"bases": [4096, 0]}, "address of a base is null"),
            ({"bases": [4096, -1]}, "address of a base is not a 64-bit integer"),
            ({"objects": [0, 4096]}, "address of a object is null"),
            ({"objects": [2**63, 4096]}, "beyond what a process has"),
            ({"objects": [HUGE, 4096]}, "not a 64-bit integer"),
            ({"objects": []}, "4 blocks are not a whole number for each of 0 objects"),
            ({"blocks": [0, 1, 2]}, "3 blocks are not a whole number for each of 2 objects"),
            ({"blocks": [0, 1, 2, 4]}, "block ids from 0 to 4; the group has the blocks 0 to 3"),
            ({"blocks": [0, 1, 2, -2]}, "block ids from -2 to 2"),
            ({"blocks": [0, 1, 2, HUGE]}, "not a 64-bit integer"),
            ({"blocks": bytes(16)}, "not a 64-bit integer"),
            ({"layers": range(3)}, "not a range of the 2 layers"),
            ({"layers": range(-1, 1)}, "not a range of the 2 layers"),
            ({"layers": range(0, 2, 2)}, "not a range of the 2 layers"),
            ({"layers": range(2, 0, -1)}, "not a range of the 2 layers"),
            ({"skip_slots": 7}, "skip_slots is 7; an object has 6 slots"),
            ({"skip_slots": -1}, "skip_slots is -1"),
        ],
    )
    def test_nothing_is_written_where_something_is_wrong(
        self, implementation: str, wrong: dict[str, Any], reason: str
    ) -> None:
        pages = ReferencePages(12, SIZES)
        pages.fill(random_content(SIZES, 1, 1))
        before = pages.content()
        group = pages.group()
        memory = np.zeros((2, group.region_layout(2).payload_bytes), np.uint8)
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        arguments = {
            "bases": pages.bases(group),
            "blocks": [0, 1, 2, 3],
            "objects": [row.ctypes.data for row in memory],
            **wrong,
        }
        with pytest.raises(LayoutError, match=reason):
            copier.scatter(group, **arguments)
        if "skip_slots" not in wrong:
            with pytest.raises(LayoutError, match=reason):
                copier.gather(group, **arguments)
        assert np.array_equal(pages.content(), before)
        assert not memory.any()

    def test_nothing_to_copy_is_nothing(self, implementation: str) -> None:
        pages = ReferencePages(12, SIZES)
        group = pages.group()
        copier = PageCopier(native=implementation)  # type: ignore[arg-type]
        memory = np.zeros(group.region_layout(2).payload_bytes, np.uint8)
        assert copier.gather(group, pages.bases(group), [], []) == 0
        assert copier.gather(group, pages.bases(group), [], [memory.ctypes.data]) == 0
        assert copier.gather(group, pages.bases(group), [0, 1], [memory.ctypes.data], layers=range(1, 1)) == 0
        assert not memory.any()

    def test_threads_may_share_a_copier(self, implementation: str) -> None:
        sizes = Sizes(layers=8, blocks=16, slots=16, heads=4, row=64, dtype="uint8")
        copier = PageCopier(threads=2, native=implementation)  # type: ignore[arg-type]
        wrong: list[str] = []

        def work(seed: int) -> None:
            pages = ReferencePages(6, sizes)
            memory = np.random.default_rng(seed).integers(0, 256, (1, sizes.layers * 2 * 16 * 16 * 256), dtype=np.uint8)
            group = pages.group()
            blocks = list(range(16))
            copier.scatter(group, pages.bases(group), blocks, [memory.ctypes.data])
            back = np.zeros_like(memory)
            copier.gather(group, pages.bases(group), blocks, [back.ctypes.data])
            if not np.array_equal(back, memory):
                wrong.append(f"thread {seed}")

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_memory_that_vanished_is_said_and_survived(tmp_path: Any) -> None:
    """The compiled implementation only: a worker cuts its segment short while it is being read."""
    if "on" not in IMPLEMENTATIONS:
        pytest.skip("lmcache-native is not installed")
    path = tmp_path / "segment"
    size = 16 * mmap.PAGESIZE
    path.write_bytes(bytes(size))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as segment:
        pages = np.frombuffer(segment, np.uint8)
        shown = TensorView("uint8", (16, 1, mmap.PAGESIZE // 4, 4), (mmap.PAGESIZE, mmap.PAGESIZE, 4, 1))
        (group,) = detect_groups([shown], LayoutHints(kv_layout="HND"))
        memory = np.zeros(size, np.uint8)
        copier = PageCopier(native="on")
        os.truncate(path, mmap.PAGESIZE)
        for copy in (copier.gather, copier.scatter):
            with pytest.raises(MemoryFault, match="vanished"):
                copy(group, [pages.ctypes.data], list(range(16)), [memory.ctypes.data])
        os.truncate(path, size)
        assert copier.gather(group, [pages.ctypes.data], list(range(16)), [memory.ctypes.data]) == size
        del pages


def test_an_object_that_vanished_is_said_where_it_gets_zeros(tmp_path: Any) -> None:
    """The compiled implementation only: chunks lie in shared memory too, and the slots of an absent block are written."""
    if "on" not in IMPLEMENTATIONS:
        pytest.skip("lmcache-native is not installed")
    path = tmp_path / "segment"
    path.write_bytes(bytes(16 * mmap.PAGESIZE))
    script = f"""
        import mmap, os
        import numpy as np
        from lmcache_kv_layout import LayoutHints, MemoryFault, PageCopier, TensorView, detect_groups

        pages = np.ones(16 * mmap.PAGESIZE, np.uint8)
        shown = TensorView("uint8", (16, 1, mmap.PAGESIZE // 4, 4), (mmap.PAGESIZE, mmap.PAGESIZE, 4, 1))
        (group,) = detect_groups([shown], LayoutHints(kv_layout="HND"))
        with open({str(path)!r}, "r+b") as file, mmap.mmap(file.fileno(), 16 * mmap.PAGESIZE) as segment:
            kept = np.frombuffer(segment, np.uint8)
            os.truncate({str(path)!r}, mmap.PAGESIZE)
            try:
                PageCopier(native="on").gather(group, [pages.ctypes.data], [0] + [-1] * 15, [kept.ctypes.data])
            except MemoryFault:
                print("survived")
            del kept
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


class TestTheChoiceOfImplementations:
    def test_numpy_where_nothing_is_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "lmcache_native", None)
        assert not PageCopier().native
        with pytest.raises(RuntimeError, match="lmcache-native is not installed; install"):
            PageCopier(native="on")

    @pytest.mark.parametrize("abi", [None, PAGE_COPY_ABI + 1])
    def test_numpy_where_what_is_compiled_does_not_fit(self, monkeypatch: pytest.MonkeyPatch, abi: int | None) -> None:
        other = SimpleNamespace(PAGE_COPY_ABI=abi, copy_pages=lambda *arguments: 0)
        monkeypatch.setitem(sys.modules, "lmcache_native", other)
        assert not PageCopier().native
        with pytest.raises(RuntimeError, match=f"convention {abi}, not {PAGE_COPY_ABI}"):
            PageCopier(native="on")

    def test_the_compiled_implementation_gets_the_number_of_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[Sequence[Any]] = []

        def copy_pages(*arguments: Any) -> int:
            calls.append(arguments)
            return 77

        fitting = SimpleNamespace(PAGE_COPY_ABI=PAGE_COPY_ABI, copy_pages=copy_pages)
        monkeypatch.setitem(sys.modules, "lmcache_native", fitting)
        pages = ReferencePages(12, SIZES)
        group = pages.group()
        copied = PageCopier(threads=2).scatter(
            group, pages.bases(group), [3, 0], [8192], skip_slots=5, layers=range(1, 2)
        )
        assert copied == 77
        ((direction, bases, blocks, objects, *rest),) = calls
        assert (direction, list(bases), list(blocks), list(objects)) == (1, pages.bases(group), [3, 0], [8192])
        assert rest == [1, 2, 1, 2, 3, 2, 4, 24, 4, 12, 5, 2]

    @pytest.mark.parametrize("threads", [0, 65])
    def test_the_number_of_threads_is_bounded(self, threads: int) -> None:
        with pytest.raises(ValueError, match=f"{threads} threads"):
            PageCopier(threads=threads)


def test_neither_torch_nor_a_server_is_imported() -> None:
    code = "import sys, lmcache_kv_layout; print([m for m in ('torch', 'zmq', 'fastapi') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
