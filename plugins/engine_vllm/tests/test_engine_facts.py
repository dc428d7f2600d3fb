"""What is read from vLLM's objects; that they look like this is tested where vLLM is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lmcache_vllm.engine_facts import cache_groups, kv_layout, placement, request_configs, request_facts, step_facts
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.prompt_identity import Adapter, Placeholder


def request(**given: Any) -> Any:
    return SimpleNamespace(
        **{
            "request_id": "r",
            "all_token_ids": [1, 2, 3, 4],
            "num_prompt_tokens": 3,
            "prompt_token_ids": [1, 2, 3],
            "prompt_embeds": None,
            "cache_salt": None,
            "mm_features": [],
            "lora_request": None,
            "kv_transfer_params": None,
            "trace_headers": None,
            "skip_reading_prefix_cache": False,
            "resumable": False,
        }
        | given
    )


def test_a_plain_request() -> None:
    facts = request_facts(request())
    assert (facts.request_id, facts.tokens, facts.prompt_tokens) == ("r", [1, 2, 3, 4], 3)
    assert (facts.cache_salt, facts.placeholders, facts.adapter, facts.configs) == ("", (), None, None)
    assert facts.looks_up
    assert not facts.obstacle


def test_everything_that_a_request_may_have() -> None:
    item = SimpleNamespace(identifier="cat", mm_position=SimpleNamespace(offset=1, length=2))
    facts = request_facts(
        request(
            cache_salt="tenant",
            mm_features=[item],
            lora_request=SimpleNamespace(lora_name="a", lora_path="/a", load_inplace=False),
            skip_reading_prefix_cache=True,
        )
    )
    assert facts.cache_salt == "tenant"
    assert facts.placeholders == (Placeholder("cat", 1, 2),)
    assert facts.adapter == Adapter("a", "/a")
    assert not facts.looks_up


@pytest.mark.parametrize(
    ("given", "obstacle"),
    [
        ({"prompt_embeds": object()}, "prompt_embeds"),
        ({"prompt_token_ids": None}, "prompt_embeds"),
        ({"resumable": True}, "streaming_input"),
        ({"lora_request": SimpleNamespace(lora_name="a", lora_path="/a", load_inplace=True)}, "adapter_in_place"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"cache_salt": "a" * 129}, "cache_salt"),
        ({"kv_transfer_params": {"lmcache.cache": False}}, "opt_out"),
    ],
)
def test_requests_that_are_not_cached(given: dict[str, Any], obstacle: str) -> None:
    assert request_facts(request(**given)).obstacle == obstacle


def test_what_is_said_to_the_server_with_a_request() -> None:
    assert request_configs({"lmcache.tag": "x", "lmcache.list": [1], "other": 2, 3: 4}) == {"lmcache.tag": "x"}
    assert request_configs({"other": 2}) is None
    assert request_configs("text") is None
    assert request_configs(None, {"traceparent": "00-1", "baggage": "x"}) == {"lmcache.traceparent": "00-1"}


def test_a_step() -> None:
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="new", num_computed_tokens=4, block_ids=([1, 2],))],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=["old", "grown", "again"],
            num_computed_tokens=[7, 8, 9],
            new_block_ids=[None, ([3],), ([4, 5],)],
            resumed_req_ids={"again"},
        ),
        num_scheduled_tokens={"new": 3, "old": 1},
        kv_connector_block_state=SimpleNamespace(resolve_block_ids={"x": ([5],)}.get),
        preempted_req_ids={"gone"},
    )
    facts = step_facts(output)
    assert facts.scheduled == {"new": (4, 3), "old": (7, 1)}
    assert facts.block_table("x") == ([5],)
    assert facts.preempted == {"gone"}
    assert list(facts.new_blocks) == [(4, ([1, 2],)), (0, ([3],)), (9, ([4, 5],))]


class FullAttentionSpec(SimpleNamespace):
    block_size = 16


class SlidingWindowSpec(FullAttentionSpec):
    sliding_window = 64


class MambaSpec(FullAttentionSpec):
    pass


def config(**parallel: int) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{"tensor_parallel_size": 2, "pipeline_parallel_size": 1} | parallel),
        model_config=SimpleNamespace(use_mla=True, is_hybrid=False),
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: SimpleNamespace(name="LBHNC")),
    )


def groups(*specs: Any) -> Any:
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(layer_names=[f"l{n}"], kv_cache_spec=spec) for n, spec in enumerate(specs)]
    )


def test_cache_groups() -> None:
    found = cache_groups(config(), groups(FullAttentionSpec(), SlidingWindowSpec()))
    assert found == (CacheGroup(("l0",), 16), CacheGroup(("l1",), 16, 64))


def test_workers_are_told_of_layers_of_several_sizes_as_one() -> None:
    """The scheduler is told of one of them: both must know of its window."""

    class UniformTypeKVCacheSpecs(SimpleNamespace):
        block_size = 16

    specs = {"a": SlidingWindowSpec(), "b": SlidingWindowSpec()}
    assert cache_groups(config(), groups(UniformTypeKVCacheSpecs(kv_cache_specs=specs))) == (
        CacheGroup(("l0",), 16, 64),
    )
    with pytest.raises(ValueError, match="MambaSpec"):
        cache_groups(config(), groups(UniformTypeKVCacheSpecs(kv_cache_specs={"a": MambaSpec()})))


def test_models_that_cannot_be_cached() -> None:
    with pytest.raises(ValueError, match=r"l1, \.\.\. of this model: their KV cache \(MambaSpec\)"):
        cache_groups(config(), groups(FullAttentionSpec(), MambaSpec()))
    with pytest.raises(ValueError, match="decode_context_parallel_size"):
        cache_groups(config(decode_context_parallel_size=2), groups(FullAttentionSpec()))


def test_a_model_whose_blocks_are_zeroed_before_stores_of_them_are_called_off() -> None:
    vllm_config, caches = config(), groups(FullAttentionSpec())
    caches.needs_kv_cache_zeroing = True
    assert cache_groups(vllm_config, caches)
    vllm_config.use_v2_model_runner = True
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        cache_groups(vllm_config, caches)


def test_which_shard() -> None:
    assert placement(config(), "name", rank=1) == Placement("name", 1, 0, 2, writes=False)


def test_how_pages_are_laid_out() -> None:
    assert kv_layout(config()) == "HND"
    assert kv_layout(SimpleNamespace(cache_config=SimpleNamespace())) is None
