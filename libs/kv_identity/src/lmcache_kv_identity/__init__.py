"""What engine integrations share to say what the bytes of a KV cache mean. It imports no engine and no server.

weights = weights_fingerprint("/models/llama-8b")              # sampled by content: milliseconds
facts = {"cache_dtype": "fp8_e4m3", "stages": [[0, 16], [16, 32]], "weights": weights}
name = engine_name("llama-8b", facts)                          # llama-8b##9f86d081884c7d65
"""

from lmcache_kv_identity.checkpoint import FORMATS, adapter_fingerprint, stamp, weights_files, weights_fingerprint
from lmcache_kv_identity.model_name import (
    Fact,
    approximate_name,
    engine_name,
    fingerprint,
    segment_name,
    with_variant,
)
from lmcache_kv_identity.segments import split_segments

__version__ = "0.1.0"

__all__ = [
    "FORMATS",
    "Fact",
    "adapter_fingerprint",
    "approximate_name",
    "engine_name",
    "fingerprint",
    "segment_name",
    "split_segments",
    "stamp",
    "weights_files",
    "weights_fingerprint",
    "with_variant",
]
