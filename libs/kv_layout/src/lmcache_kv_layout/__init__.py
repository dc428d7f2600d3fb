"""Paged KV caches of engines: which layout they have, and their chunks as the server stores them.

groups = detect_groups(views, LayoutHints(kv_layout="HND"))
layout = object_layout(groups, chunk_tokens=256)
PageCopier().gather(groups[0], base_addresses, block_ids, object_addresses)
"""

from typing import TYPE_CHECKING, Any

from lmcache_kv_layout.chunk_blocks import NO_BLOCK, ChunkBlocks, whole_chunks
from lmcache_kv_layout.chunk_rows import ChunkRows
from lmcache_kv_layout.detection import detect_groups
from lmcache_kv_layout.engine_group import EngineGroup
from lmcache_kv_layout.errors import LayoutError, MemoryFault
from lmcache_kv_layout.formats import EngineKVFormat
from lmcache_kv_layout.hints import LayoutHints
from lmcache_kv_layout.kv_places import KVPlaces
from lmcache_kv_layout.limits import GROUPS_MAX, LAYERS_MAX
from lmcache_kv_layout.object_groups import (
    ObjectGroupPlan,
    ObjectRegion,
    object_layout,
    plan_object_groups,
)
from lmcache_kv_layout.page_copier import PageCopier
from lmcache_kv_layout.paged_group import PagedGroup
from lmcache_kv_layout.registration import Layer
from lmcache_kv_layout.tensor_view import TensorView

if TYPE_CHECKING:
    from lmcache_kv_layout.rotary import Rotary

__all__ = [
    "GROUPS_MAX",
    "LAYERS_MAX",
    "NO_BLOCK",
    "ChunkBlocks",
    "ChunkRows",
    "EngineGroup",
    "EngineKVFormat",
    "KVPlaces",
    "Layer",
    "LayoutError",
    "LayoutHints",
    "MemoryFault",
    "ObjectGroupPlan",
    "ObjectRegion",
    "PageCopier",
    "PagedGroup",
    "Rotary",
    "TensorView",
    "detect_groups",
    "object_layout",
    "plan_object_groups",
    "whole_chunks",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "Rotary":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from lmcache_kv_layout.rotary import Rotary  # imports numpy, which a server without such workers does not need

    return Rotary
