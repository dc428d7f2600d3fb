"""Objects as plain files, behind an adapter's back."""

from __future__ import annotations

from pathlib import Path

from lmcache_core.model.keys import ObjectKey, media_path
from lmcache_devkit.l2.media import Media


class FileMedia(Media):
    """For adapters that keep each object in a file of its own at `media_path(key)` below a root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, key: ObjectKey) -> bytes | None:
        path = self._root / media_path(key)
        return path.read_bytes() if path.exists() else None

    def write(self, key: ObjectKey, data: bytes) -> None:
        path = self._root / media_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def remove(self, key: ObjectKey) -> None:
        (self._root / media_path(key)).unlink(missing_ok=True)
