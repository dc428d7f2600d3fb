"""The gate of blending in a real engine: which models may be blended, by what their layers compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo.engine_process import EngineProcess
from lmcache_devkit import free_ports
from tests.engine.test_blend import BLENDS, DRIVER

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

PASSES = "KV of this model can be moved"
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3": (
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "num_key_value_heads": 2},
        PASSES,
    ),
    "partial": (
        {
            "model_type": "stablelm",
            "architectures": ["StableLmForCausalLM"],
            "partial_rotary_factor": 0.25,
            "num_key_value_heads": 4,
        },
        PASSES,
    ),
    "neighbours": (
        {
            "model_type": "gptj",
            "architectures": ["GPTJForCausalLM"],
            "n_embd": 128,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 4096,
            "rotary_dim": 16,
        },
        PASSES,
    ),
    "yarn": (LLAMA | {"num_key_value_heads": 2, "rope_scaling": YARN, "rope_parameters": YARN}, PASSES),
    "half": (LLAMA | {"num_key_value_heads": 2, "torch_dtype": "bfloat16"}, PASSES),
    "learned": (
        {
            "model_type": "opt",
            "architectures": ["OPTForCausalLM"],
            "ffn_dim": 256,
            "word_embed_proj_dim": 128,
            "do_layer_norm_before": True,
        },
        "is the limit; no table of a rotary embedding was found in its layers",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_judged_by_what_they_compute(engine_environment: None, tmp_path: Path, name: str) -> None:
    config, expected = MODELS[name]
    model = tmp_path / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SIZES | config))
    control = tmp_path / "control.json"
    control.write_text(json.dumps({"vllm": {"load_format": "dummy"}}))
    (port,) = free_ports(1)
    engine = EngineProcess(
        tmp_path / "engine.log",
        port=port,
        connector="own",
        extra={**BLENDS, "lmcache.blend_min_tokens": 64},
        model=model,
        driver=DRIVER,
        options=[str(control), "--max-model-len", "2048", "--dtype", str(config.get("torch_dtype", "float32"))],
        one_process=True,
    )
    with engine:
        assert expected in engine.log
