"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_serdes() -> Sequence[Offer]:
    return [
        Offer(
            "chain",
            "Puts the serdes of an adapter around it",
            "lmcache_serde.chain.opening:open_chain",
            "lmcache_serde.chain.opening:ChainSettings",
            wraps=True,
        ),
        _offer("aesgcm", "Encrypts with AES-256-GCM; keys follow from the cache salt", "aesgcm", "AesGcm"),
        Offer(
            "fp8", "Eight-bit floats with a scale per layer and channel: half of bfloat16", "lmcache_serde.fp8:open_fp8"
        ),
        _offer(
            "int4", "Four-bit integers in groups of tokens: a quarter of bfloat16, lossy", "integers", "Int4", "int4"
        ),
        _offer("int8", "Eight-bit integers in groups of tokens: half of bfloat16", "integers", "Int8", "int8"),
        _offer("zstd", "Lossless compression of any element type, byte planes apart", "zstd", "Zstd"),
    ]


def _offer(name: str, summary: str, module: str, prefix: str, opener: str = "") -> Offer:
    home = f"lmcache_serde.{module}"
    return Offer(name, summary, f"{home}:open_{opener or module}", f"{home}:{prefix}Settings")
