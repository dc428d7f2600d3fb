"""The folder of an `fs` L2 adapter, seen from outside."""

from __future__ import annotations

import json
import time
from pathlib import Path

POLL_SECONDS = 0.05


class L2Folder:
    """Finished objects are `*.kv` files somewhere below the folder; unfinished ones have no such name yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def adapter_option(self) -> list[str]:
        """The server's command-line arguments for an adapter that stores here."""
        return ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(self.path)})]

    def objects(self) -> list[Path]:
        return [path for path in self.path.rglob("*.kv") if ".tmp" not in path.parts]

    def wait_for_objects(self, count: int, timeout_seconds: float) -> None:
        """Block until this many objects are finished; TimeoutError, which says how many there are, if they never are."""
        deadline = time.monotonic() + timeout_seconds
        while (present := len(self.objects())) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{present} of {count} objects in {self.path} after {timeout_seconds:.0f} s")
            time.sleep(POLL_SECONDS)
