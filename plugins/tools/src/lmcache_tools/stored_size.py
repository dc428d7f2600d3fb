"""What chunks take in a tier."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Final

from lmcache_client.layout import ITEM_BYTES
from lmcache_core.model.object_header import HEADER_BYTES

ALIGN_BYTES: Final = 4096
_LAYOUT: Final = re.compile(r"(?P<dtype>\w+)\[(?P<shape>\d+(?:, \d+)*)\](?: in blocks of \d+(?: ordered \w+)?)?")


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """One chunk of a model: an object of `object_bytes`, header page included, for each of its `shards`."""

    tokens: int
    object_bytes: int
    shards: int

    @property
    def chunk_bytes(self) -> int:
        return self.object_bytes * self.shards

    @property
    def bytes_per_token(self) -> float:
        return self.chunk_bytes / self.tokens

    def tokens_in(self, size_bytes: float) -> int:
        """Whole chunks only."""
        return int(size_bytes // self.chunk_bytes) * self.tokens


def chunk_size(payload_bytes: int, tokens: int, shards: int, align_bytes: int = ALIGN_BYTES) -> ChunkSize:
    """By the payload of one shard's object."""
    object_bytes = -(-(HEADER_BYTES + payload_bytes) // align_bytes) * align_bytes
    return ChunkSize(tokens, object_bytes, shards)


def chunk_size_of(layout: str, shards: int) -> ChunkSize | None:
    """By a layout as `/status` writes it, such as "float16[2, 32, 256, 1024]"; None when it cannot be read."""
    found = _LAYOUT.fullmatch(layout)
    if found is None or found["dtype"] not in ITEM_BYTES:
        return None
    shape = [int(part) for part in found["shape"].split(", ")]
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    return chunk_size(prod(shape) * ITEM_BYTES[found["dtype"]], shape[-2], shards)
