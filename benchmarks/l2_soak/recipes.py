"""The configurations that are put under load: as people know them, with sizes of this machine.

`combined` keeps both tiers below a watermark of their own.  In `buffer_only` L1 is nothing but the way to the disk.  That
recipe names no capacity; without one a few minutes of full load fill any disk, so that it gets one here, with an eviction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

GIB: Final = 2**30
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Sizes:
    """In bytes, as in the server's settings.  `chunk_bytes` is the payload of one object."""

    l1_bytes: int
    l2_bytes: int
    chunk_bytes: int


FULL: Final = Sizes(512 * MIB, 2 * GIB, MIB)
L2_EVICTION: Final[Mapping[str, Any]] = {"eviction_policy": "LRU", "trigger_watermark": 0.9, "eviction_ratio": 0.1}
RECIPES: Final = ("combined", "buffer_only")
CHUNK_TOKENS: Final = 64


def options(recipe: str, adapter: str, sizes: Sizes, folder: Path) -> list[str]:
    """What `lmcache server` is started with; ports are its starter's to choose.  Raises ValueError for a recipe that there
    is none of."""
    disk = {
        "type": adapter,
        "base_path": str(folder),
        "max_capacity_gb": sizes.l2_bytes / GIB,
        "eviction": L2_EVICTION,
    }
    common = ["--l1-size-gb", f"{sizes.l1_bytes / GIB:g}", "--chunk-size", str(CHUNK_TOKENS)]
    match recipe:
        case "combined":
            return [
                *common,
                *("--eviction-policy", "LRU", "--eviction-trigger-watermark", "0.8", "--eviction-ratio", "0.2"),
                *("--l2-adapter", json.dumps(disk)),
            ]
        case "buffer_only":
            return [
                *("--max-workers", "32", *common, "--l1-use-lazy", "--eviction-policy", "noop"),
                *("--l2-store-policy", "skip_l1", "--l2-prefetch-policy", "default"),
                *("--l2-adapter", json.dumps({**disk, "num_workers": 32, "use_odirect": True})),
            ]
    raise ValueError(f"no recipe is called {recipe!r}; there are: {', '.join(RECIPES)}")
