"""The model name that an engine sends: what decides the bytes of its KV cache, from vLLM's configuration.

Only attributes are read. The facts follow from the configuration and the files of the weights, so that every worker of an
engine finds the same ones. The scheduler uses the name that workers report (`metadata.WorkerReport`): vLLM changes its
configuration while a worker builds the model, and some facts only a worker knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

from lmcache_kv_identity import Fact, engine_name, fingerprint
from lmcache_vllm.model_weights import weights_facts
from lmcache_vllm.placement import CacheGroup

_NOT_OF_THE_KV: Final = frozenset({"id2label", "label2id", "transformers_version", "use_cache"})
"""Entries of a model's configuration that do not change its KV."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine is called, and why."""

    served: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Empty: the name is sent as it is, as the stock connector does."""

    def model_name(self, worker_facts: Mapping[str, Fact] | None = None) -> str:
        """What is sent to the server. `worker_facts` are facts that follow from a worker's KV cache; every worker of an
        engine must find the same ones."""
        if not self.facts:
            return self.served
        return engine_name(self.served, {**self.facts, "worker": dict(worker_facts or {})})

    def __str__(self) -> str:
        """A few digits of each fact: engines that do not share differ in one of them, or in what workers add."""
        return " ".join(f"{name}={fingerprint({name: fact})[:8]}" for name, fact in self.facts.items())


def engine_identity(
    vllm_config: Any,
    groups: Sequence[CacheGroup],
    *,
    stages: Sequence[Sequence[int]],
    float8: str = "",
    share_with_stock: bool,
) -> EngineIdentity:
    """`stages`: first layer and end of each pipeline stage. `float8`: what the platform means by `fp8`. With
    `share_with_stock` the name is the stock connector's: what it stored is found, and nothing says what the bytes mean."""
    model, load_config = vllm_config.model_config, vllm_config.load_config
    if share_with_stock:
        return EngineIdentity(model.model)
    facts: dict[str, Fact] = {
        **_model_facts(model),
        "weights": weights_facts(model, load_config),
        "cache": _cache_facts(vllm_config, float8),
        "stages": [list(stage) for stage in stages],
        # Workers of a later stage know no other stage's layers: there the cut and the model's configuration say the same.
        "layers": [list(group.layer_names) for group in groups] if len(stages) == 1 else None,
    }
    speculative: Any = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None:  # its layers are part of the KV cache
        facts["draft"] = {**_model_facts(draft), "weights": weights_facts(draft, load_config)}
    return EngineIdentity(_served_name(model), facts)


def _served_name(model: Any) -> str:
    """The first name that clients of the engine use, which its metrics show."""
    served = getattr(model, "served_model_name", None)
    if isinstance(served, list | tuple):
        served = served[0] if served else None
    return str(served or model.model)


def _model_facts(model: Any) -> dict[str, Fact]:
    text_config = getattr(model, "hf_text_config", None)
    multimodal = getattr(model, "multimodal_config", None)
    return {
        "config": _config_facts(model.hf_config),
        "text_config": None if text_config is None or text_config is model.hf_config else _config_facts(text_config),
        # The class that computes it: vLLM's own, or the one that wraps transformers (`--model-impl`).
        "architecture": _plain(getattr(model, "architecture", None)),
        "dtype": _plain(model.dtype),
        "quantization": _plain(getattr(model, "quantization", None)),
        "quantization_config": _plain(getattr(model, "quantization_config", None)),
        "code_revision": _plain(getattr(model, "code_revision", None)),
        "model_class_overrides": _plain(getattr(model, "model_class_overrides", None) or None),
        "disable_sliding_window": bool(getattr(model, "disable_sliding_window", False)),
        # Some rotary embeddings choose their factors by the longest prompt that the engine takes.
        "max_model_len": model.max_model_len if _scales_with_length(text_config or model.hf_config) else None,
        "media": multimodal
        and {
            name: _plain(getattr(multimodal, name, None))
            for name in ("mm_processor_kwargs", "video_pruning_rate", "language_model_only")
        },
    }


def _cache_facts(vllm_config: Any, float8: str) -> dict[str, Fact]:
    """What an element of the cache means: eleven of vLLM's types are kept as `uint8`."""
    cache, dtype = vllm_config.cache_config, str(vllm_config.cache_config.cache_dtype)
    if dtype == "auto":
        dtype = str(_plain(vllm_config.model_config.dtype))
    # Scales that follow from an engine's first requests are not another engine's.
    own_scales = bool(getattr(cache, "calculate_kv_scales", False))
    return {
        "dtype": "fp8_e4m3" if dtype == "fp8" else dtype,
        "float8": float8 if "fp8" in dtype else "",
        "skipped_layers": sorted(map(str, getattr(cache, "kv_cache_dtype_skip_layers", None) or ())),
        "scales": str(vllm_config.kv_transfer_config.engine_id) if own_scales else "checkpoint",
    }


def _scales_with_length(config: Any) -> bool:
    ropes = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    return "longrope" in repr(_plain(ropes))


def _config_facts(config: Any) -> Fact:
    given = dict(config.to_dict() if hasattr(config, "to_dict") else vars(config))
    rope = given.get("rope_parameters")
    # vLLM renames the embedding of this draft model when it builds a layer. Other pipeline stages build none.
    renamed = ("deepseek_yarn", "deepseek_llama_scaling")
    if getattr(config, "model_type", "") == "deepseek_mtp" and rope and rope.get("rope_type") in renamed:
        given["rope_parameters"] = {**rope, "rope_type": "yarn"}
    return _plain(given)


def _plain(value: Any) -> Fact:
    """A value of a configuration as facts have it. Paths, versions and private entries are left out, because they differ
    between machines for one and the same model."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return {
            str(key): _plain(inner)
            for key, inner in value.items()
            if str(key) not in _NOT_OF_THE_KV and not str(key).startswith("_")
        }
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Iterable) and not isinstance(value, PurePath):
        return [_plain(inner) for inner in value]
    return _ADDRESS.sub("", repr(value)).removeprefix("torch.")
