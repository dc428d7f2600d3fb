"""Engines that do not blend: they are refused when they start, by name and with the remedy where there is one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from lmcache_vllm.settings import PREFIX, Settings

logger = logging.getLogger(__name__)

_PLAIN_TYPES: Final = ("auto", "float32", "float16", "half", "bfloat16", "float")
_WINDOW_SPECS: Final = ("SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec")


def check_blend(settings: Settings, vllm_config: Any, kv_cache_config: Any, *, gives_model: bool = True) -> None:
    """Raises ValueError where `lmcache.blend` is on and this engine cannot blend: for every reason at once. Reads attributes of
    vLLM's objects. `gives_model`: vLLM's worker gives its model to the connector, as far as is known."""
    if settings.blend == "off":
        return
    reasons = [*_of_engine(vllm_config), *_of_caches(vllm_config, kv_cache_config)]
    if not gives_model:
        worker_class = vllm_config.parallel_config.worker_cls
        reasons.append(f"its worker class is {worker_class}, start vLLM with --worker-cls lmcache_vllm.BlendWorker")
    last, layers = settings.blend_check_layers[-1], vllm_config.model_config.get_total_num_hidden_layers()
    if last >= layers:
        reasons.append(
            f"'{PREFIX}blend_check_layers' names layer {last}, and the model has the layers 0 to {layers - 1}"
        )
    if reasons:
        raise ValueError(f"'{PREFIX}blend' is {settings.blend!r}, and this engine cannot blend: {'; '.join(reasons)}")


def _of_engine(vllm_config: Any) -> Iterator[str]:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if vllm_config.cache_config.enable_prefix_caching:
        yield "vLLM's prefix cache would share approximate blocks, start vLLM with --no-enable-prefix-caching"
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield f"it has a {name} of {getattr(parallel, name)}, blending needs 1"
    if getattr(parallel, "data_parallel_size", 1) > 1 and model.is_moe:
        yield f"it is a mixture of experts with a data_parallel_size of {parallel.data_parallel_size}, blending needs 1"
    if vllm_config.speculative_config is not None:
        yield "it drafts tokens (speculative_config), and the KV of a draft model is not blended"
    if model.uses_mrope:
        yield "its positions have several dimensions (M-RoPE)"
    if model.is_encoder_decoder:
        yield "it has an encoder"
    if model.is_hybrid or model.is_attention_free:
        yield "it has recurrent layers"
    if getattr(model, "runner_type", "generate") != "generate":
        yield f"its runner is '{model.runner_type}', only generated text is blended"


def _of_caches(vllm_config: Any, kv_cache_config: Any) -> Iterator[str]:
    if vllm_config.model_config.use_mla:
        yield "it has multi-head latent attention (MLA)"
    kind = str(vllm_config.cache_config.cache_dtype)
    if kind not in _PLAIN_TYPES:
        yield f"its KV cache is quantized ({kind}), start vLLM with --kv-cache-dtype auto"
    specs = [_spec(group) for group in kv_cache_config.kv_cache_groups]
    if any(name in _WINDOW_SPECS for name in specs):
        yield "it has KV cache groups with a sliding window, start vLLM with --disable-hybrid-kv-cache-manager"
    elif len(specs) != 1:
        yield f"it has {len(specs)} KV cache groups ({', '.join(specs)}), blending needs one"


def _spec(group: Any) -> str:
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return type(next(iter(inner.values())) if inner else group.kv_cache_spec).__name__


def blend_selectors(settings: Settings) -> dict[str, bool]:
    """The names that requests may choose from, and whether each looks at what the question attends to. One of another package
    that cannot be loaded is left out. Raises ValueError where none are there, and where the one that is set is not."""
    if settings.blend == "off":
        return {}
    try:
        from lmcache_blend_select import Need, available, selector  # of the extra `blend`
    except ImportError as error:
        raise ValueError(
            f"'{PREFIX}blend' is {settings.blend!r}, and lmcache-blend-select is not there ({error}): "
            "pip install 'lmcache-vllm[blend]'"
        ) from None
    try:
        selector(settings.blend_selector)
    except ValueError as error:
        raise ValueError(f"'{PREFIX}blend_selector': {error}") from None
    found = {}
    for name in available():
        try:
            found[name] = Need.ATTENTION in selector(name).needs
        except ValueError as error:
            logger.warning("requests cannot choose a selector that is not loaded: %s", error)
    return found
