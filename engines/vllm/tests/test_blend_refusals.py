"""Engines that do not blend. That vLLM's configuration looks like this is tested where vLLM is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lmcache_vllm.blend_refusals import blend_selectors, check_blend
from lmcache_vllm.settings import Settings

BLENDING = Settings(blend="all")


class FullAttentionSpec(SimpleNamespace):
    pass


class SlidingWindowSpec(SimpleNamespace):
    pass


class MambaSpec(SimpleNamespace):
    pass


def engine(**given: Any) -> Any:
    """An engine that blends, but for `given`: attributes of the parts of vLLM's configuration, by name."""
    model: dict[str, Any] = {
        "uses_mrope": False,
        "is_encoder_decoder": False,
        "is_hybrid": False,
        "is_attention_free": False,
        "is_moe": False,
        "use_mla": False,
        "runner_type": "generate",
        "get_total_num_hidden_layers": lambda: 4,
    }
    parallel = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "data_parallel_size": 1,
        "tensor_parallel_size": 2,
        "worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker",
    }
    cache = {"enable_prefix_caching": False, "cache_dtype": "auto"}
    config = SimpleNamespace(speculative_config=given.pop("speculative_config", None))
    for name, part in (("model_config", model), ("parallel_config", parallel), ("cache_config", cache)):
        part |= {key: given.pop(key) for key in list(given) if key in part}
        setattr(config, name, SimpleNamespace(**part))
    assert not given
    return config


def caches(*specs: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


ONE = caches(FullAttentionSpec())


def test_an_engine_that_blends() -> None:
    check_blend(BLENDING, engine(), ONE)
    check_blend(BLENDING, engine(data_parallel_size=2), ONE)
    inner = SimpleNamespace(kv_cache_specs={"a": FullAttentionSpec(), "b": FullAttentionSpec()})
    check_blend(BLENDING, engine(), caches(inner))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"enable_prefix_caching": True}, "--no-enable-prefix-caching"),
        ({"pipeline_parallel_size": 2}, "a pipeline_parallel_size of 2, blending needs 1"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size"),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size"),
        ({"data_parallel_size": 2, "is_moe": True}, "a mixture of experts with a data_parallel_size of 2"),
        ({"speculative_config": object()}, "speculative_config"),
        ({"uses_mrope": True}, "M-RoPE"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"is_hybrid": True}, "recurrent layers"),
        ({"is_attention_free": True}, "recurrent layers"),
        ({"runner_type": "pooling"}, "its runner is 'pooling'"),
        ({"use_mla": True}, "MLA"),
        ({"cache_dtype": "fp8_e4m3"}, "quantized (fp8_e4m3), start vLLM with --kv-cache-dtype auto"),
        ({"get_total_num_hidden_layers": lambda: 1}, "names layer 2, and the model has the layers 0 to 0"),
    ],
)
def test_what_an_engine_is_refused_for(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r"'lmcache.blend' is 'all', and this engine cannot blend: ") as raised:
        check_blend(BLENDING, engine(**given), ONE)
    assert says in str(raised.value)
    check_blend(Settings(), engine(**given), ONE)


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (caches(FullAttentionSpec(), SlidingWindowSpec()), "--disable-hybrid-kv-cache-manager"),
        (caches(SlidingWindowSpec()), "--disable-hybrid-kv-cache-manager"),
        (caches(SimpleNamespace(kv_cache_specs={"a": SlidingWindowSpec()})), "--disable-hybrid-kv-cache-manager"),
        (
            caches(FullAttentionSpec(), MambaSpec()),
            "2 KV cache groups (FullAttentionSpec, MambaSpec), blending needs one",
        ),
    ],
)
def test_kv_caches_that_are_refused(groups: Any, says: str) -> None:
    with pytest.raises(ValueError, match="cannot blend") as raised:
        check_blend(BLENDING, engine(), groups)
    assert says in str(raised.value)


def test_every_reason_is_said_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"--no-enable-prefix-caching; .*M-RoPE.*; .*worker class is vllm\.v1\.worker"
    ) as raised:
        check_blend(BLENDING, engine(enable_prefix_caching=True, uses_mrope=True), ONE, gives_model=False)
    assert str(raised.value).endswith("start vLLM with --worker-cls lmcache_vllm.BlendWorker")


def test_selectors() -> None:
    assert blend_selectors(Settings(blend_selector="none of these")) == {}
    pytest.importorskip("lmcache_blend_select")
    found = blend_selectors(BLENDING)
    assert {"cacheblend", "full", "lego_link", "none"} <= found.keys()
    assert [name for name, looks_at_question in found.items() if looks_at_question] == ["question"]
    with pytest.raises(ValueError, match=r"'lmcache.blend_selector'.*best"):
        blend_selectors(Settings(blend="all", blend_selector="best"))
