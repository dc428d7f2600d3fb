from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import AdapterContext
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_object_files import FileSettings, ObjectFiles, open_object_files

OpenFiles = Callable[..., ObjectFiles]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def context() -> AdapterContext:
    return adapter_context(BorrowedMemory(4096), name="files")


@pytest.fixture
def open_files(root: Path, context: AdapterContext) -> Iterator[OpenFiles]:
    """`open_files(fsync=True, ...)` opens `root`; the test's end gives back what the test has not closed."""
    opened: list[ObjectFiles] = []

    def open_files(**settings: Any) -> ObjectFiles:
        opened.append(open_object_files(FileSettings.model_validate({"base_path": str(root), **settings}), context))
        return opened[-1]

    yield open_files
    for files in opened:
        try:
            files.give_up()
        except OSError:
            pass  # closed by the test
