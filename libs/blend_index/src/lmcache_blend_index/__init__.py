"""An index of chunks by their tokens, which finds them in a prompt at any offset."""

from lmcache_blend_index.index import ChunkIndex, Match, link
from lmcache_blend_index.table import ALIKE_MAX, MATCHES_MAX

__all__ = ["ALIKE_MAX", "MATCHES_MAX", "ChunkIndex", "Match", "link"]
__version__ = "0.1.0"
