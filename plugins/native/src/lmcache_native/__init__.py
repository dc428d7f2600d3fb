"""Compiled twins of the kernels of lmcache-core.  They behave as those do; what each does is written down there, in
`lmcache_core/kernels/interfaces.py`."""

from __future__ import annotations

from lmcache_native._kernels import KERNEL_ABI, Recency, SlotTable, read_prompt

__version__ = "0.1.0"

__all__ = ["KERNEL_ABI", "Recency", "SlotTable", "__version__", "read_prompt"]
