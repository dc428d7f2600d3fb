"""The model name that an engine sends: another one whenever the bytes of its KV cache mean something else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm.tests.vllm_configs import LAYERS, vllm_config
from lmcache_core import parse_model_name
from lmcache_kv_identity import engine_name, fingerprint, with_variant
from lmcache_vllm.model_identity import EngineIdentity, engine_identity
from lmcache_vllm.placement import CacheGroup


def _identity(stages: Any = ((0, 2),), groups: Any = (LAYERS,), **given: Any) -> EngineIdentity:
    return engine_identity(vllm_config(**given), groups, stages=stages, share_with_stock=False)


def name(**given: Any) -> str:
    return _identity(**given).model_name()


def test_engines_alike_have_one_name() -> None:
    assert name() == name()
    assert parse_model_name(name()).served == "m"
    assert len(parse_model_name(name()).identity) == 16


@pytest.mark.parametrize(
    "given",
    [
        {"cache_dtype": "fp8_e4m3"},
        {"cache_dtype": "fp8_e5m2"},
        {"cache_dtype": "nvfp4"},
        {"cache_dtype": "turboquant_k8v4"},
        {"cache_dtype": "float16"},
        {"kv_cache_dtype_skip_layers": ["0"]},
        {"dtype": "bfloat16"},
        {"seed": 1},
        {"quantization": "fp8"},
        {"quantization_config": {"linear": "fp8_per_tensor"}},
        {"revision": "other"},
        {"hf": {"rope_scaling": {"type": "linear", "factor": 2.0}}},
        {"hf": {"quantization_config": {"quant_method": "gptq"}}},
        {"disable_sliding_window": True},
        {"architecture": "TransformersForCausalLM"},
        {"stages": ((0, 1), (1, 2))},
        {"groups": (CacheGroup(("model.layers.1", "model.layers.0"), 16),)},
        {"multimodal_config": SimpleNamespace(mm_processor_kwargs={"max_pixels": 4})},
    ],
    ids=str,
)
def test_whatever_changes_the_bytes_changes_the_name(given: dict[str, Any]) -> None:
    assert name(**given) != name()


def test_types_of_one_size_are_kept_apart() -> None:
    """All of them are `uint8` in memory."""
    types = ("fp8_e4m3", "fp8_e5m2", "nvfp4", "turboquant_k8v4", "turboquant_4bit_nc", "int8_per_token_head")
    assert len({name(cache_dtype=one) for one in types}) == len(types)


def test_another_cut_of_the_stages_is_another_name() -> None:
    """Shapes of the middle stage are equal, and so are the worlds."""
    assert name(stages=((0, 5), (5, 11), (11, 18))) != name(stages=((0, 6), (6, 12), (12, 18)))


@pytest.mark.parametrize(
    "given",
    [
        {"cache_dtype": "float32"},  # what "auto" is here
        {"model": "/elsewhere/m"},
        {"hf": {"_name_or_path": "/elsewhere/m", "transformers_version": "5.1", "id2label": {0: "a"}}},
        {"max_model_len": 8192},
    ],
    ids=str,
)
def test_what_does_not_change_the_bytes_does_not_change_the_name(given: dict[str, Any]) -> None:
    renamed = given.pop("hf", {})
    config = vllm_config(**given)
    vars(config.model_config.hf_config).update(renamed)
    assert engine_identity(config, (LAYERS,), stages=((0, 2),), share_with_stock=False).model_name() == name()


def test_some_rotary_embeddings_follow_the_longest_prompt() -> None:
    rope = {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}
    assert name(hf=rope, max_model_len=4096) != name(hf=rope, max_model_len=131072)


def test_scales_of_the_first_requests_are_shared_with_no_other_engine() -> None:
    some, others = (vllm_config(cache_dtype="fp8", calculate_kv_scales=True) for _ in range(2))
    others.kv_transfer_config.engine_id = "e-2"
    names = {
        engine_identity(config, (LAYERS,), stages=((0, 2),), share_with_stock=False).model_name()
        for config in (some, others)
    }
    assert len(names) == 2


def test_a_model_that_drafts_tokens_is_part_of_the_cache() -> None:
    drafted = vllm_config()
    for dtype in ("float32", "bfloat16"):
        draft = vllm_config(dtype=dtype).model_config
        drafted.speculative_config = SimpleNamespace(method="eagle", draft_model_config=draft)
        identity = engine_identity(drafted, (LAYERS,), stages=((0, 2),), share_with_stock=False)
        assert identity.model_name() != name()


def test_weights_count_by_content(tmp_path: Path) -> None:
    def name_of(folder: str, weights: bytes, **given: Any) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "model.safetensors").write_bytes(weights)
        return name(model=str(tmp_path / folder), load_format="auto", **given)

    base = name_of("a", b"base")
    assert name_of("b", b"base") == base
    assert name_of("a", b"merged") != base
    (tmp_path / "b/model.bin").write_bytes(b"other")
    assert name(model=str(tmp_path / "b"), load_format="pt") not in (base, name(load_format="pt"))


def test_a_commit_counts_wherever_it_is_known_from(tmp_path: Path) -> None:
    """By its name on the hub with a network, and by the folder of its cache without."""

    class Resolved(str):
        resolved = "c" * 40

    def name_of(folder: str, revision: Any = None) -> str:
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "model.safetensors").write_bytes(b"base")
        return name(model=str(path), load_format="auto", revision=revision)

    cached = name_of("models--org--m/snapshots/" + "c" * 40)
    (tmp_path / "link").symlink_to(tmp_path / "models--org--m/snapshots" / ("c" * 40))
    assert cached == name_of("link") == name_of("copy", Resolved("main"))
    assert len({cached, name_of("copy"), name_of("copy", "main"), name_of("x/snapshots/" + "d" * 40)}) == 4


@given(st.text(max_size=8), st.dictionaries(st.text(max_size=4), st.integers()), st.sampled_from(["", "0" * 16]))
def test_the_server_splits_names_as_the_library_joins_them(served: str, facts: dict[str, int], variant: str) -> None:
    sent = with_variant(engine_name(served, facts), variant)
    assert parse_model_name(sent) == (served, fingerprint(facts), variant)


def test_weights_that_are_nowhere_count_by_where_they_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    from_bucket = name(model=str(tmp_path), model_weights="s3://bucket/m", load_format="runai_streamer")
    assert "no files of weights were found for s3://bucket/m" in caplog.text
    assert from_bucket == name(model="/elsewhere", model_weights="s3://bucket/m", load_format="runai_streamer")
    assert from_bucket != name(model=str(tmp_path), model_weights="s3://bucket/n", load_format="runai_streamer")


def test_weights_that_cannot_be_read_cause_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> str:
        raise PermissionError("not yours")

    monkeypatch.setattr("lmcache_vllm.model_weights.weights_fingerprint", refuse)
    assert parse_model_name(name(model=str(tmp_path), load_format="auto")).identity
    assert "could not be read error=not yours" in caplog.text


def test_the_stock_connectors_name() -> None:
    identity = engine_identity(vllm_config(), (LAYERS,), stages=((0, 2),), share_with_stock=True)
    assert identity.model_name() == identity.model_name({"order": "slots"}) == "/models/m"


def test_what_only_workers_know_is_part_of_the_name() -> None:
    identity = EngineIdentity("m", {"cache": "auto"})
    assert identity.model_name() == identity.model_name({})
    assert identity.model_name({"order": "slots"}) != identity.model_name()


def test_engines_that_do_not_share_can_be_compared() -> None:
    some, others = (
        dict(part.split("=") for part in str(_identity(revision=revision)).split()) for revision in ("a", "b")
    )
    assert some.keys() == others.keys() >= {"weights", "config", "cache", "stages"}
    assert [name for name in some if some[name] != others[name]] == ["weights"], "the commit is that of the weights"
