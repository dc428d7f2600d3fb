from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """For files that replace devices of memory: in memory themselves, and gone when the test ends."""
    folder = Path(tempfile.mkdtemp(prefix="lmcache-dax-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
