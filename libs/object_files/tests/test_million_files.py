"""A million files: serving at once, known soon, in little memory."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.object_files.tests.conftest import OpenFiles
from lmcache_core import HashChain, KeySpace, ObjectKey, media_path

FILES = 1_000_000
FILE_BYTES = 64
BYTES_PER_OBJECT_MAX = 200
SPACE = KeySpace("acme/llama 3", 0x01000100, 0, "tenant", 256, HashChain.BLAKE3, bytes(16))


@pytest.fixture
def million(root: Path) -> Iterator[Path]:
    """A directory with that number of sparse files of that size."""
    make_files(root)
    yield root
    shutil.rmtree(root)


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # making and removing the files takes most of it
def test_a_million_files_are_served_at_once_and_known_soon(
    million: Path, open_files: OpenFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    gc.collect()
    memory_before = resident_bytes()
    started = time.monotonic()
    files = open_files()
    assert files.contains(key(FILES - 1)), "it must be found before the walk has come to it"
    served = time.monotonic() - started
    processor_before = time.process_time()
    while not files.recovered:
        time.sleep(0.02)
    known, processor = time.monotonic() - started, time.process_time() - processor_before
    assert files.usage() == (FILES * FILE_BYTES, None, FILES)
    gc.collect()
    per_object = (resident_bytes() - memory_before) / FILES
    with capsys.disabled():
        print(
            f"\n{FILES} files: serving after {served:.3f} s, known after {known:.1f} s ({processor:.1f} s of a processor), "
            f"{per_object:.0f} bytes each"
        )
    assert per_object < BYTES_PER_OBJECT_MAX


def key(number: int) -> ObjectKey:
    return ObjectKey(SPACE, number.to_bytes(32, "little"))


def make_files(root: Path) -> None:
    parent = (root / media_path(key(0))).parent.parent
    for fan_out in range(256):
        (parent / f"{fan_out:02x}").mkdir(parents=True)
    for number in range(FILES):
        name = key(number).object_id.hex()
        fd = os.open(f"{parent}/{name[:2]}/{name}.kv", os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(fd, FILE_BYTES)
        os.close(fd)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
