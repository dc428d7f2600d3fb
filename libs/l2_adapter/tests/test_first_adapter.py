"""A first adapter is 40 lines: this one is complete, with its settings and its offer, and keeps every requirement."""

# The adapter.  What is a plugin of its own elsewhere begins here ...
from pathlib import Path

import lmcache_core as core
from lmcache_l2_adapter import BlockingL2Adapter

CAPABILITIES = core.Capability.DELETE | core.Capability.DURABLE | core.Capability.SHARED


class FolderSettings(core.PluginSettings):
    folder: Path


class Folder(BlockingL2Adapter):
    capabilities = CAPABILITIES

    def __init__(self, settings: FolderSettings, context: core.AdapterContext) -> None:
        self.folder = settings.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        super().__init__(context)

    def path(self, key: core.ObjectKey) -> Path:
        return self.folder / key.object_id.hex()

    def store(self, key: core.ObjectKey, buffer: core.BorrowedBuffer) -> core.Outcome:
        if not self.contains(key):
            unfinished = self.path(key).with_suffix(f".{self.context.boot_id}")
            unfinished.write_bytes(buffer.view)
            unfinished.rename(self.path(key))
        return core.Outcome.DONE

    def load(self, key: core.ObjectKey, buffer: core.BorrowedBuffer) -> core.Outcome:
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            return core.Outcome.MISSING
        if len(data) != buffer.length:
            return core.Outcome.DAMAGED
        buffer.view[:] = data
        return core.Outcome.DONE

    def contains(self, key: core.ObjectKey) -> bool:
        return self.path(key).exists()

    def delete(self, key: core.ObjectKey) -> core.Outcome:
        if not self.contains(key):
            return core.Outcome.MISSING
        self.path(key).unlink(missing_ok=True)
        return core.Outcome.DONE


@core.hookimpl
def lmcache_l2_adapters() -> list[core.Offer]:
    at = f"{__name__}:Folder"
    return [core.Offer("folder", "Each object a file", at, f"{at}Settings", CAPABILITIES)]


# ... and ends here.
import inspect  # noqa: E402
import sys  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

from lmcache_devkit.l2_suite import L2AdapterSuite  # noqa: E402


def test_it_is_no_longer_than_that() -> None:
    source = inspect.getsource(sys.modules[__name__])
    adapter = source.partition("begins here ...\n")[2].partition("# ... and ends here")[0]
    lines = [line for line in adapter.splitlines() if line]
    assert lines[0].startswith("from pathlib")
    assert len(lines) <= 40


class TestFolder(L2AdapterSuite):
    offer = lmcache_l2_adapters()[0]
    open_close_rounds = 50
    payload_bytes_max = 2**20

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"folder": str(tmp_path / "kv")}
