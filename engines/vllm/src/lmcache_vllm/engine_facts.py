"""From vLLM's objects to plain data. Only attributes are read, vLLM itself is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lmcache_vllm.adapter_contents import AdapterContent, AdapterContents
from lmcache_vllm.blend_choice import BlendChoices
from lmcache_vllm.handoffs import Handoff
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.prompt_identity import Placeholder
from lmcache_vllm.request_facts import RequestFacts, StepFacts

CONFIG_PREFIX: Final = "lmcache."
SALT_CHARS_MAX: Final = 128
SALT_FORBIDDEN: Final = frozenset("@/\\\x00")
_PAGED_SPECS: Final = frozenset(
    {
        "FullAttentionSpec",
        "MLAAttentionSpec",
        "SlidingWindowSpec",
        "SlidingWindowMLASpec",
        "ChunkedLocalAttentionSpec",
    }
)
"""Caches that are blocks of tokens, each token's KV in a slot of its own."""
_LAYOUT_NAMES: Final = {"LBHNC": "HND", "LBNHC": "NHD"}
"""What others call vLLM's layouts in which each layer has a tensor to itself."""


def request_facts(
    request: Any,
    adapters: AdapterContents,
    handoff: Handoff | None = None,
    choices: BlendChoices | None = None,
) -> RequestFacts:
    """Of a vLLM Request. `choices`: None where nothing is blended."""
    lora = request.lora_request
    adapter = adapters.of(lora) if lora else AdapterContent()
    configs = request_configs(request.kv_transfer_params, request.trace_headers)
    salt = request.cache_salt or ""
    skip_reason = _skip_reason(request, salt, configs) or adapter.skip_reason
    blend = None
    if choices is not None:
        blend = choices.of(request.kv_transfer_params, skip_reason or _blend_refusal(request, handoff))
    return RequestFacts(
        request_id=request.request_id,
        tokens=request.all_token_ids,
        prompt_tokens=request.num_prompt_tokens,
        cache_salt=salt,
        placeholders=tuple(
            Placeholder(item.identifier, item.mm_position.offset, item.mm_position.length)
            for item in request.mm_features or ()
        ),
        adapter=adapter.fingerprint,
        configs=configs,
        handoff=handoff,
        looks_up=not request.skip_reading_prefix_cache,
        skip_reason=skip_reason,
        blend=blend,
    )


def _blend_refusal(request: Any, handoff: Handoff | None) -> str:
    """Why a request that can be cached cannot be blended, in a word for counters."""
    sampling = request.sampling_params
    if request.lora_request:
        return "adapter"
    if request.mm_features:
        return "images"
    if sampling is None:
        return "pooling"
    if sampling.prompt_logprobs is not None:
        return "prompt_logprobs"
    if request.skip_reading_prefix_cache:
        return "skips_cache"
    return "handoff" if handoff else ""


def _skip_reason(request: Any, salt: str, configs: Mapping[str, Any] | None) -> str:
    if request.prompt_embeds is not None or request.prompt_token_ids is None:
        return "prompt_embeds"
    if getattr(request, "resumable", False):
        return "streaming_input"  # its tokens change after they were computed
    if len(salt) > SALT_CHARS_MAX or not SALT_FORBIDDEN.isdisjoint(salt):
        return "cache_salt"
    if configs and configs.get("lmcache.cache") is False:
        return "opt_out"
    return ""


def request_configs(params: Any, trace_headers: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """What is said to the cache server with a request: entries of its kv_transfer_params that have a plain type, and the
    trace that it belongs to."""
    chosen: dict[str, Any] = {}
    if trace_headers and "traceparent" in trace_headers:
        chosen["lmcache.traceparent"] = trace_headers["traceparent"]
    if isinstance(params, Mapping):
        chosen |= {
            key: value
            for key, value in params.items()
            if isinstance(key, str)
            and key.startswith(CONFIG_PREFIX)
            and (value is None or isinstance(value, bool | int | float | str))
        }
    return chosen or None


def step_facts(output: Any) -> StepFacts:
    """Of a vLLM SchedulerOutput."""
    new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
    computed = {request.req_id: request.num_computed_tokens for request in new}
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    new_blocks = [(request.num_computed_tokens, request.block_ids) for request in new]
    for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
        if blocks is not None:  # the whole table of a request that was preempted, of others what is new in it
            new_blocks.append((computed[request_id] if request_id in cached.resumed_req_ids else 0, blocks))
    return StepFacts(
        scheduled={
            request_id: (computed[request_id], count) for request_id, count in output.num_scheduled_tokens.items()
        },
        block_table=output.kv_connector_block_state.resolve_block_ids,
        preempted=frozenset(output.preempted_req_ids or ()),
        new_blocks=new_blocks,
    )


def cache_groups(vllm_config: Any, kv_cache_config: Any) -> tuple[CacheGroup, ...]:
    """The KV cache groups of a model. Raises ValueError for one that cannot be cached in chunks of tokens."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ValueError(f"LMCacheNodeConnector does not support {name} above 1")
    groups = tuple(_cache_group(group) for group in kv_cache_config.kv_cache_groups)
    if getattr(kv_cache_config, "needs_kv_cache_zeroing", False) and getattr(vllm_config, "use_v2_model_runner", False):
        raise ValueError(
            "LMCacheNodeConnector cannot cache this model with vLLM's model runner V2: its KV cache has layers of several "
            "precisions, and blocks are zeroed before stores that read them are called off. Start vLLM with "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )
    return groups


def _cache_group(group: Any) -> CacheGroup:
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)  # of layers of several sizes, in workers; the scheduler has one
    if inner:
        spec = next(iter(inner.values()))
    kind = type(spec).__name__
    if kind not in _PAGED_SPECS or not getattr(group, "enable_kv_transfer", True):
        raise ValueError(
            f"LMCacheNodeConnector cannot cache the layers {', '.join(group.layer_names[:3])}, ... of this model: their "
            f"KV cache ({kind}) is not one slot for each token. Start vLLM without a kv_transfer_config"
        )
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return CacheGroup(tuple(group.layer_names), spec.block_size, window or -1)


def placement(vllm_config: Any, model_name: str, rank: int) -> Placement:
    """Which shard the worker of that rank holds."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return Placement.of(
        model_name,
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        rank,
        mla=bool(model.use_mla) and not model.is_hybrid,
    )


def kv_layout(vllm_config: Any) -> str | None:
    """The order of the pages' axes; None where vLLM does not say."""
    resolve = getattr(vllm_config.cache_config, "get_resolved_kv_cache_layout", None)
    if resolve is None:
        return None
    name = str(resolve().name)
    return _LAYOUT_NAMES.get(name, name)
