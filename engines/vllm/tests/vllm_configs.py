"""As much of vLLM's configuration as a model's name follows from. That vLLM's looks like this is tested where vLLM is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lmcache_vllm.placement import CacheGroup

LAYERS = CacheGroup(("model.layers.0", "model.layers.1"), 16)


class Config(SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def vllm_config(**given: Any) -> Any:
    """As much of vLLM's configuration as is read; `given` are attributes of its parts, by name."""
    rope = {"rope_theta": 5e5, "rope_type": "default"}
    source = {"_name_or_path": "/models/m", "transformers_version": "5.0"}
    hf_config = Config(rope_parameters=rope, hidden_size=64, **source, **given.pop("hf", {}))
    model = SimpleNamespace(model="/models/m", served_model_name="m", hf_config=hf_config, hf_text_config=hf_config)
    model.dtype, model.seed = "float32", 0
    model.max_model_len = 4096
    cache = SimpleNamespace(cache_dtype="auto", kv_cache_dtype_skip_layers=[])
    for name, value in given.items():
        part = cache if hasattr(cache, name) or name == "calculate_kv_scales" else model
        setattr(part, name, value)
    load = SimpleNamespace(load_format=given.get("load_format", "dummy"), download_dir=None)
    transfer = SimpleNamespace(engine_id="e-1")
    return SimpleNamespace(model_config=model, cache_config=cache, kv_transfer_config=transfer, load_config=load)
