"""Compiled implementations of the kernels, which behave as the pure ones do.  What each does is written down there:
`Recency` and `SlotTable` in `lmcache_core/kernels/interfaces.py`, `ReadPrompt` in `lmcache_client/hash_chain.py`, `ChunkTable`
in `lmcache_blend_index/table.py`.  And
`copy_pages`, `read_rows` and `write_rows`, which move KV between an engine's pages and chunk objects."""

from __future__ import annotations

from lmcache_native._kernels import (
    BFLOAT16,
    CHUNK_TABLE_ABI,
    FLOAT16,
    FLOAT32,
    GATHER,
    KERNEL_ABI,
    PAGE_COPY_ABI,
    ROW_MOVE_ABI,
    SCATTER,
    ChunkTable,
    Recency,
    SlotTable,
    copy_pages,
    read_prompt,
    read_rows,
    write_rows,
)

__version__ = "0.1.0"

__all__ = [
    "BFLOAT16",
    "CHUNK_TABLE_ABI",
    "FLOAT16",
    "FLOAT32",
    "GATHER",
    "KERNEL_ABI",
    "PAGE_COPY_ABI",
    "ROW_MOVE_ABI",
    "SCATTER",
    "ChunkTable",
    "Recency",
    "SlotTable",
    "__version__",
    "copy_pages",
    "read_prompt",
    "read_rows",
    "write_rows",
]
