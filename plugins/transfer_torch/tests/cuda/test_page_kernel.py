"""The kernel itself, without a GPU: in triton's interpreter against the CPU's copier, and through the real compiler."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lmcache_kv_layout import PageCopier, PagedGroup
from lmcache_transfer_torch.cuda.page_images import PageCompiler
from lmcache_transfer_torch.cuda.page_shape import PageShape, page_shape
from lmcache_transfer_torch.device import DeviceError
from plugins.transfer_torch.tests.cuda.rig import group_bytes, paged_group

REPOSITORY = Path(__file__).resolve().parents[4]
PYTHON = REPOSITORY / ".venv-engine/bin/python"
SOURCES = REPOSITORY / "plugins/transfer_torch/src"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="triton is in .venv-engine; `make setup` makes it")

GEOMETRIES = {
    "token-major": paged_group(heads=3, head_bytes=24),
    "head-major": paged_group(heads=3, head_bytes=16, hnd=True),
    "two axes, padded": paged_group(kv_axis=2, head_bytes=8, padding=40),
    "odd bytes": paged_group(layers=1, heads=1, head_bytes=7),
    "two-byte words": paged_group(layers=1, heads=2, head_bytes=6, hnd=True),
    "several tiles": paged_group(layers=1, heads=8, head_bytes=132, blocks=4, slots=16),
}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def interpreter() -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [str(PYTHON), str(Path(__file__).with_name("interpreted_kernel.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    yield child
    child.communicate(timeout=30)
    assert child.returncode == 0


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_kernel_moves_what_the_cpu_moves(interpreter: subprocess.Popen[str], name: str) -> None:
    group, blocks = GEOMETRIES[name], 2
    ids, objects = [3, 1, -1, 2], 2
    pages = ctypes.create_string_buffer(random.Random(5).randbytes(group_bytes(group)), group_bytes(group))
    shape = page_shape(group, blocks, tuple(offset for _, offset in group.bases))
    case = {
        "shape": asdict(shape),
        "objects": objects,
        "planes": len(group.bases),
        "blocks": ids,
        "bases": [offset for _, offset in group.bases],
        "seed": 5,
        "storage_bytes": group_bytes(group),
    }
    assert interpreter.stdin is not None
    assert interpreter.stdout is not None
    interpreter.stdin.write(json.dumps(case) + "\n")
    interpreter.stdin.flush()
    made: dict[str, str] = json.loads(interpreter.stdout.readline())

    size = group.region_layout(blocks).payload_bytes
    assert bytes.fromhex(made["objects"]) == _gathered(group, pages, ids, objects, size)
    assert bytes.fromhex(made["pages"]) == _scattered(group, bytes.fromhex(made["objects"]), ids, objects, size)


def _gathered(group: PagedGroup, pages: Any, ids: list[int], objects: int, size: int) -> bytes:
    stored = ctypes.create_string_buffer(objects * size)
    PageCopier(native="off").gather(group, _bases(group, pages), ids, _regions(stored, objects, size))
    return stored.raw


def _scattered(group: PagedGroup, content: bytes, ids: list[int], objects: int, size: int) -> bytes:
    stored = ctypes.create_string_buffer(content, objects * size)
    pages = ctypes.create_string_buffer(group_bytes(group))
    PageCopier(native="off").scatter(group, _bases(group, pages), ids, _regions(stored, objects, size))
    return pages.raw


def _bases(group: PagedGroup, pages: Any) -> list[int]:
    return [ctypes.addressof(pages) + offset for _, offset in group.bases]


def _regions(stored: Any, objects: int, size: int) -> list[int]:
    return [ctypes.addressof(stored) + number * size for number in range(objects)]


@pytest.mark.parametrize(("capability", "gather"), [(80, True), (90, False)])
def test_it_compiles_for_gpus_that_are_not_here(monkeypatch: pytest.MonkeyPatch, capability: int, gather: bool) -> None:
    for name, value in _environment().items():
        monkeypatch.setenv(name, value)
    shape = page_shape(paged_group(heads=8, head_bytes=256, slots=16), 16, (0,))
    image = PageCompiler(str(PYTHON))(shape, gather, capability)
    assert image.image[:4] == b"\x7fELF"
    assert image.parameters[:5] == ("i64", "i64", "i64", "i64", "i32")
    assert set(image.parameters[5:]) <= {"i64"}
    assert image.shared_bytes == 0
    assert image.threads == 128


def test_it_compiles_without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra `cuda` brings triton alone."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    for name, value in _environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    shape = page_shape(paged_group(heads=8, head_bytes=256, slots=16), 16, (0,))
    assert PageCompiler(str(PYTHON))(shape, True, 80).image[:4] == b"\x7fELF"


def test_without_triton_the_remedy_is_named(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'triton'\" >&2\nexit 1\n")
    without.chmod(0o755)
    with pytest.raises(DeviceError, match=r"No module named 'triton'; pip install 'lmcache-transfer-torch\[cuda\]'"):
        PageCompiler(str(without))(PageShape(8, 1, 1, 1, 1, 1, 1, 1), True, 90)


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no triton here' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(DeviceError, match="no triton here"):
        PageCompiler(str(broken))(PageShape(8, 1, 1, 1, 1, 1, 1, 1), True, 90)
    with pytest.raises(DeviceError, match="did not answer"):
        PageCompiler(str(tmp_path / "nothing"))(PageShape(8, 1, 1, 1, 1, 1, 1, 1), True, 90)
