"""Which model it is, by the parameters that it has now, and what its KV cache looks like."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from blake3 import blake3
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lmcache_kv_identity import Fact, engine_name

SAMPLES: Final = 4096
"""Values of each parameter that are looked at, at even distances: training, merging and quantizing change whole tensors."""
LENGTH_ROPES: Final = ("dynamic", "longrope")
"""Positions that turn K by how long the whole prompt is."""
_NO_IDENTITY: Final = ("_name_or_path", "transformers_version", "use_cache")
"""Of a configuration: what the bytes of KV do not depend on."""


def check_model(model: Any) -> None:
    """Raises ValueError, naming it, for a model whose K and V do not follow from the tokens before them, and for one whose
    cache is not one of plain attention."""
    if getattr(model, "_hf_peft_config_loaded", False) or hasattr(model, "peft_config"):
        raise ValueError("a model with adapters is not supported: merge them into the weights first")
    if model.config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__} has an encoder; models that are a decoder alone are supported")
    config = model.config.get_text_config()
    if ropes := sorted(set(_rope_types(config)) & set(LENGTH_ROPES)):
        raise ValueError(
            f"rope_type '{ropes[0]}' turns K by the length of the whole prompt, so that the K of its beginning is not that of "
            "another prompt's"
        )
    others = sorted({type(layer).__name__ for layer in DynamicCache(config=config).layers} - {DynamicLayer.__name__})
    if others:
        raise ValueError(
            f"{type(model).__name__} has layers of {', '.join(others)}; plain attention is supported alone"
        )
    if model.training:
        raise ValueError("the model is in training mode, where dropout changes K and V: call model.eval()")


def _rope_types(config: Any) -> Iterator[str]:
    parameters = getattr(config, "rope_parameters", None) or {}
    for each in (parameters, *parameters.values()):  # one for all layers, or one for each kind of layer
        if isinstance(each, Mapping) and "rope_type" in each:
            yield str(each["rope_type"])


def parameter_state(model: Any) -> tuple[tuple[int, int], ...]:
    """Another one when a parameter was replaced or changed in place, as optimizers and `copy_` do."""
    return tuple((each.data_ptr(), each._version) for each in model.parameters())


def model_name(model: Any) -> str:
    """`hf:name##fingerprint`: of other weights, and of another configuration, it is another one."""
    weights = blake3()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        weights.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        weights.update(_sampled(tensor))
    config = json.loads(model.config.to_json_string(use_diff=False))
    facts: dict[str, Fact] = {
        "model": type(model).__name__,
        "config": {name: value for name, value in config.items() if name not in _NO_IDENTITY},
        "weights": weights.hexdigest(),
    }
    path = str(model.config._name_or_path) or type(model).__name__
    return engine_name(f"hf:{os.path.basename(path.rstrip('/')) if os.path.isdir(path) else path}", facts)


def _sampled(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // SAMPLES)
    return flat[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
