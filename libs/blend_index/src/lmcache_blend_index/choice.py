"""Which implementation an index has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, Literal, NamedTuple

from lmcache_blend_index.table import ChunkTable, PureChunkTable
from lmcache_client.hash_chain import ReadPrompt, read_prompt

CHUNK_TABLE_ABI: Final = 1
"""The interface that is spoken here; another one is not used."""


class Implementation(NamedTuple):
    native: bool
    """Is it the compiled one?"""
    table: Callable[[int, int, int, bytes], ChunkTable]
    """Makes one, of chunk_tokens, chunks_max, a multiplier below the prime, and a key of 32 bytes."""
    read_prompt: ReadPrompt


PURE: Final = Implementation(False, PureChunkTable, read_prompt)


def choose(native: Literal["auto", "on", "off"]) -> Implementation:
    """See `ChunkIndex`."""
    if native == "off":
        return PURE
    try:
        module = import_module("lmcache_native")
    except ImportError:
        module = None
    abi = getattr(module, "CHUNK_TABLE_ABI", None)
    if module is not None and abi == CHUNK_TABLE_ABI:
        return Implementation(True, module.ChunkTable, module.read_prompt)
    if native == "auto":
        return PURE
    reason = "is not installed" if module is None else f"has tables of chunks of the kind {abi}, not {CHUNK_TABLE_ABI}"
    raise RuntimeError(f"lmcache-native {reason}; install the lmcache-native of this release, or do without it")
