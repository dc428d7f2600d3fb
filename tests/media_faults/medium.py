"""Media for backends that break on cue, and those of a size that is soon used up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSTHROUGH = "tests.media_faults.cued_passthrough"
MOUNT_SECONDS = 20.0


@dataclass(frozen=True)
class CuedMedium:
    """A file system at `root` whose operations fail on request."""

    root: Path
    _cue: Path

    def fail(self, kind: str, error: str) -> None:
        """From now on, operations of this kind (see `cued_passthrough`) end with this errno."""
        self._cue.write_text(f"{kind} {error}\n")

    def repair(self) -> None:
        self._cue.write_text("")


@contextmanager
def cued_medium(folder: Path) -> Iterator[CuedMedium]:
    """A new one, on a directory of `folder`.  Skips the test where this may not mount."""
    _require_root()
    _require_fuse()
    root, backing, cue = folder / "medium", folder / "backing", folder / "cue"
    root.mkdir()
    backing.mkdir()
    cue.touch()
    with (folder / "medium.log").open("wb") as log:
        command = [sys.executable, "-m", PASSTHROUGH, str(backing), str(root), str(cue)]
        daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + MOUNT_SECONDS
        while not os.path.ismount(root):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the medium was not mounted: {(folder / 'medium.log').read_text()}")
            time.sleep(0.02)
        yield CuedMedium(root, cue)
    finally:
        cue.write_text("")
        _unmount(root)
        try:
            daemon.wait(5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@contextmanager
def small_file_system(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of the kernel's own in memory, of this size.  Skips the test where this may not mount."""
    _require_root()
    root = folder / "small"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield root
    finally:
        _unmount(root)


def _unmount(root: Path) -> None:
    """Also where something still has files open there, as the server of a test that failed may have."""
    subprocess.run(["umount", "--lazy", str(root)], capture_output=True, check=False)


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")


def _require_fuse() -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("there is no /dev/fuse")
    try:
        import mfusepy  # noqa: F401  # it looks for libfuse when it is imported
    except OSError as error:
        pytest.skip(f"libfuse is not installed: {error}")
