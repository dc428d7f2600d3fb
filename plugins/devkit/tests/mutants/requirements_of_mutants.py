"""One class of requirements for each mutant, and one for what they were made from.  Run by test_mutants.py alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lmcache_core import Capability, ObjectKey, Offer
from lmcache_devkit import L2AdapterSuite, Media
from plugins.devkit.tests.mutants.every_mutant import PLANTED
from plugins.devkit.tests.mutants.file_adapter import CAPABILITIES, FileAdapter


class ObjectFiles(Media):
    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: ObjectKey) -> bytes | None:
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._path(key).write_bytes(data)

    def remove(self, key: ObjectKey) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: ObjectKey) -> Path:
        return self._root / f"{key.object_id.hex()}.kv"


class FileSuite(L2AdapterSuite):
    wait_seconds: ClassVar[float] = 3.0
    open_close_rounds = 40
    payload_bytes_max = 0

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"root": str(tmp_path / "kv")}

    @pytest.fixture
    def small_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"root": str(tmp_path / "small"), "capacity_bytes": self.small_bytes}

    @pytest.fixture
    def media(self, tmp_path: Path) -> ObjectFiles:
        return ObjectFiles(tmp_path / "kv")

    @pytest.fixture
    def stalled(self) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def stalled() -> Iterator[None]:
            FileAdapter.go_on.clear()
            try:
                yield
            finally:
                FileAdapter.go_on.set()

        return stalled

    @pytest.fixture
    def failing(self) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def failing() -> Iterator[None]:
            FileAdapter.fails.set()
            try:
                yield
            finally:
                FileAdapter.fails.clear()

        return failing


def offer_of(adapter: type[FileAdapter]) -> Offer:
    package = "plugins.devkit.tests.mutants"
    return Offer(
        adapter.__name__, "", f"{adapter.__module__}:{adapter.__name__}", f"{package}.file_adapter:FileSettings",
        adapter.capabilities if Capability.SHARED in adapter.capabilities else CAPABILITIES | adapter.capabilities,
    )  # fmt: skip


globals().update(PLANTED.suites(FileSuite, __name__, offer_of))
