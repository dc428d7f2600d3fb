"""What a model's `config.json` says about the size of its KV cache, and about the work of a prefill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError
from lmcache_client.layout import ITEM_BYTES
from lmcache_tools.stored_size import ChunkSize, chunk_size

_CONFIG_BYTES_MAX: Final = 8 << 20
_LARGEST: Final = 2**24
_CACHE_WORDS: Final = ("full_attention", "sliding_attention", "chunked_attention", "attention")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`hidden` elements of each layer and token are kept: K and V of all heads, or what MLA keeps in their place."""

    name: str
    layers: int
    """Those that keep K and V."""
    kv_heads: int
    hidden: int
    dtype: str
    is_mla: bool
    parameters: int
    """That one token passes through, roughly; of a mixture of experts, the active ones."""
    remark: str = ""

    @property
    def bytes_per_token(self) -> int:
        return self.layers * self.hidden * ITEM_BYTES[self.dtype]

    def chunk(self, tokens: int, shards: int, align_bytes: int) -> ChunkSize:
        """As it is stored by `shards` workers.  Heads are never cut: where there are more workers than heads, several keep
        the same one.  What MLA keeps cannot be divided, and is stored once."""
        if self.is_mla:
            return chunk_size(self.bytes_per_token * tokens, tokens, 1, align_bytes)
        heads = max(1, self.kv_heads // shards)
        return chunk_size(self.bytes_per_token * heads // self.kv_heads * tokens, tokens, shards, align_bytes)

    def prefill_flops(self, tokens: int) -> float:
        """Two for each parameter and token; attention itself, which grows with the prompt, is left out."""
        return 2.0 * self.parameters * tokens


def read_model_shape(path: Path, kv_dtype: str | None) -> ModelShape:
    """Of a `config.json`, or of the folder that it is in.  Raises ConfigError that names the file and the field."""
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            config = json.loads(opened.read(_CONFIG_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"--model {file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--model {file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--model {file}: expected the JSON object of a model's config.json")
    text = config.get("text_config")
    return model_shape({**config, **text} if isinstance(text, dict) else config, kv_dtype, f"--model {file}")


def model_shape(config: Mapping[str, Any], kv_dtype: str | None, where: str) -> ModelShape:
    """Raises ConfigError that begins with `where`."""
    numbers = _Numbers(config, where)
    layers, size = numbers.need("num_hidden_layers", "n_layer"), numbers.need("hidden_size", "n_embd")
    heads = numbers.need("num_attention_heads", "n_head")
    kv_heads = numbers.find("num_key_value_heads") or heads
    head = numbers.find("head_dim") or size // heads
    if not head:
        raise ConfigError(f"{where}: 'hidden_size' {size} is less than 'num_attention_heads' {heads}")
    latent = numbers.find("kv_lora_rank")
    hidden = latent + (numbers.find("qk_rope_head_dim") or 0) if latent else 2 * kv_heads * head
    kinds = config.get("layer_types")
    keeping = [kind for kind in kinds if kind in _CACHE_WORDS] if isinstance(kinds, list) else None
    remark = ""
    if keeping is not None and len(keeping) < layers:
        remark = f"{layers - len(keeping)} of {layers} layers keep a state of their own kind, which is not counted"
        layers = max(1, len(keeping))
    return ModelShape(
        name=str(config.get("_name_or_path") or config.get("model_type") or "model")[:200],
        layers=layers,
        kv_heads=1 if latent else kv_heads,
        hidden=hidden,
        dtype=_dtype(config, kv_dtype, where),
        is_mla=bool(latent),
        parameters=_parameters(numbers, size, heads, kv_heads, head),
        remark=remark,
    )


class _Numbers:
    """Positive integers of a config, by any of several names."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def find(self, *names: str) -> int | None:
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
                raise ConfigError(f"{self._where}: '{name}' is {str(value)[:40]!r}: expected a number up to {_LARGEST}")
            return value
        return None

    def need(self, *names: str) -> int:
        value = self.find(*names)
        if not value:
            raise ConfigError(f"{self._where}: '{names[0]}' is missing; is it the config.json of a language model?")
        return value


def _dtype(config: Mapping[str, Any], kv_dtype: str | None, where: str) -> str:
    quantized = config.get("kv_cache_dtype")
    named = kv_dtype or quantized or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = str(named).removeprefix("torch.")
    dtype = (
        "float8_e4m3fn" if dtype in ("fp8", "fp8_e4m3", "float8") else "float8_e5m2" if dtype == "fp8_e5m2" else dtype
    )
    if dtype not in ITEM_BYTES:
        raise ConfigError(
            f"{where}: dtype '{dtype[:40]}' is not known; give --kv-dtype with one of {', '.join(ITEM_BYTES)}"
        )
    return dtype


def _parameters(numbers: _Numbers, size: int, heads: int, kv_heads: int, head: int) -> int:
    layers = numbers.need("num_hidden_layers", "n_layer")
    attention = size * head * (2 * heads + 2 * kv_heads)
    inner = numbers.find("intermediate_size", "n_inner") or 4 * size
    active = numbers.find("num_experts_per_tok", "num_experts_per_token")
    if active:
        each = numbers.find("moe_intermediate_size") or inner
        shared = numbers.find("n_shared_experts") or 0
        return layers * (attention + 3 * size * each * (active + shared))
    return layers * (attention + 3 * size * inner)
