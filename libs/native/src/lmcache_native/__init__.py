"""Compiled implementations of the kernels, which behave as the pure ones do.  What each does is written down there:
`Recency` and `SlotTable` in `lmcache_core/kernels/interfaces.py`, `ReadPrompt` in `lmcache_client/hash_chain.py`.  And
`copy_pages`, which moves KV between an engine's pages and chunk objects."""

from __future__ import annotations

from lmcache_native._kernels import (
    GATHER,
    KERNEL_ABI,
    PAGE_COPY_ABI,
    SCATTER,
    Recency,
    SlotTable,
    copy_pages,
    read_prompt,
)

__version__ = "0.1.0"

__all__ = [
    "GATHER",
    "KERNEL_ABI",
    "PAGE_COPY_ABI",
    "SCATTER",
    "Recency",
    "SlotTable",
    "__version__",
    "copy_pages",
    "read_prompt",
]
