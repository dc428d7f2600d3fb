"""Machines that are not this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.machine import Machine

GIB = 2**30
MakeContext = Callable[..., CheckContext]


class Room:
    """What `statvfs` answers."""

    def __init__(self, free_bytes: int) -> None:
        self.f_bavail, self.f_frsize = free_bytes // 4096, 4096


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """`make_context({"proc/meminfo": ...}, free=GIB, l1_size_gb=2)`: files below its root, room of every file system, and
    settings."""

    def make(
        files: dict[str, str] | None = None,
        *,
        free: int = 100 * GIB,
        processors: int = 8,
        limit: tuple[int, int] = (65536, 65536),
        **settings: Any,
    ) -> CheckContext:
        root = tmp_path / "root"
        for name, text in {"dev/shm/.keep": "", **(files or {})}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

        def statvfs(path: Path) -> os.statvfs_result:
            return Room(free)  # type: ignore[return-value]

        machine = Machine(root, statvfs, lambda: processors, lambda kind: limit)
        plugins = load_plugins()
        return CheckContext(read_settings(settings, plugins), plugins, machine=machine)

    return make
