"""What is read from vLLM's objects; that they look like this is tested where vLLM is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmcache_kv_identity import adapter_fingerprint
from lmcache_vllm import adapter_contents
from lmcache_vllm.adapter_contents import AdapterContents
from lmcache_vllm.blend_choice import BlendChoices
from lmcache_vllm.engine_facts import cache_groups, kv_layout, placement, request_configs, request_facts, step_facts
from lmcache_vllm.handoffs import Handoff
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.prompt_identity import Placeholder
from lmcache_vllm.settings import Settings


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
            "sampling_params": SimpleNamespace(prompt_logprobs=None),
        }
        | given
    )


def lora(path: Any, number: int = 1, load_inplace: bool = False) -> Any:
    return SimpleNamespace(lora_name="a", lora_int_id=number, lora_path=str(path), load_inplace=load_inplace)


def adapter(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    return folder


def test_a_plain_request() -> None:
    facts = request_facts(request(), AdapterContents())
    assert (facts.request_id, facts.tokens, facts.prompt_tokens) == ("r", [1, 2, 3, 4], 3)
    assert (facts.cache_salt, facts.placeholders, facts.adapter, facts.configs) == ("", (), "", None)
    assert facts.looks_up
    assert not facts.skip_reason


def test_everything_that_a_request_may_have(tmp_path: Path) -> None:
    item = SimpleNamespace(identifier="cat", mm_position=SimpleNamespace(offset=1, length=2))
    facts = request_facts(
        request(
            cache_salt="tenant",
            mm_features=[item],
            lora_request=lora(adapter(tmp_path, b"weights")),
            skip_reading_prefix_cache=True,
        ),
        AdapterContents(),
    )
    assert facts.cache_salt == "tenant"
    assert facts.placeholders == (Placeholder("cat", 1, 2),)
    assert facts.adapter == adapter_fingerprint(tmp_path)
    assert not facts.looks_up


@pytest.mark.parametrize(
    ("given", "skip_reason"),
    [
        ({"prompt_embeds": object()}, "prompt_embeds"),
        ({"prompt_token_ids": None}, "prompt_embeds"),
        ({"resumable": True}, "streaming_input"),
        ({"lora_request": lora("/a", load_inplace=True)}, "adapter_in_place"),
        ({"lora_request": lora("/nowhere")}, "adapter_unknown"),
        ({"lora_request": lora("no/repository/of/that/name")}, "adapter_unknown"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"cache_salt": "a" * 129}, "cache_salt"),
        ({"kv_transfer_params": {"lmcache.cache": False}}, "opt_out"),
    ],
)
def test_requests_that_are_not_cached(given: dict[str, Any], skip_reason: str) -> None:
    assert request_facts(request(**given), AdapterContents()).skip_reason == skip_reason


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, ""),
        (
            {"mm_features": [SimpleNamespace(identifier="cat", mm_position=SimpleNamespace(offset=1, length=2))]},
            "images",
        ),
        ({"sampling_params": SimpleNamespace(prompt_logprobs=0)}, "prompt_logprobs"),
        ({"sampling_params": None}, "pooling"),
        ({"skip_reading_prefix_cache": True}, "skips_cache"),
        ({"prompt_embeds": object()}, "prompt_embeds"),
        ({"cache_salt": "a@b"}, "cache_salt"),
    ],
)
def test_requests_that_are_not_blended(given: dict[str, Any], refused: str) -> None:
    contents, choices = AdapterContents(), BlendChoices(Settings(blend="all"), {"cacheblend": False})
    found = request_facts(request(**given), contents, None, choices).blend
    assert found is not None
    assert found.refused == refused
    assert request_facts(request(**given), contents).blend is None


def test_adapters_and_handoffs_are_not_blended(tmp_path: Path) -> None:
    choices = BlendChoices(Settings(blend="all"), {"cacheblend": False})
    adapted = request(lora_request=lora(adapter(tmp_path, b"weights")))
    handed = request_facts(request(), AdapterContents(), Handoff("h", gives=False), choices).blend
    found = request_facts(adapted, AdapterContents(), None, choices).blend
    assert found is not None
    assert handed is not None
    assert (found.refused, handed.refused) == ("adapter", "handoff")


def test_an_adapter_is_known_by_its_content(tmp_path: Path) -> None:
    """Neither its name nor its number nor its path counts."""
    contents = AdapterContents()
    some, copy, other = (
        contents.of(lora(adapter(tmp_path / name, weights), number))
        for number, (name, weights) in enumerate([("a", b"one"), ("b", b"one"), ("c", b"two")], 1)
    )
    assert some == copy != other
    assert not some.skip_reason
    (tmp_path / "c/adapter_config.json").write_text('{"r": 16}')
    assert contents.of(lora(tmp_path / "c", 4)).fingerprint not in (some.fingerprint, other.fingerprint)


def test_an_adapter_whose_files_change_is_not_what_was_loaded(tmp_path: Path) -> None:
    """What the workers have is not known any more, until it is loaded anew."""
    contents, folder = AdapterContents(), adapter(tmp_path / "a", b"one")
    before = contents.of(lora(folder))
    assert contents.of(lora(folder)) == before
    adapter(folder, b"another")
    assert contents.of(lora(folder)).skip_reason == "adapter_changed"
    after = contents.of(lora(folder, number=2))
    assert not after.skip_reason
    assert after != before
    (folder / "adapter_config.json").unlink()
    assert contents.of(lora(folder, number=2)).skip_reason == "adapter_changed"


def test_few_adapters_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_contents, "ADAPTERS_MAX", 2)
    contents, folder = AdapterContents(), adapter(tmp_path / "a", b"one")
    for number in (1, 2, 1, 3):
        assert not contents.of(lora(folder, number)).skip_reason
    assert [number for number, _ in contents._known] == [1, 3]


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


def test_workers_get_layers_of_several_sizes_as_one() -> None:
    """The scheduler gets one of them: both must know its window."""

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
