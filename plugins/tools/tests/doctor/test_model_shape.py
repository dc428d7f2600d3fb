"""Bytes per token of well-known models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_client.errors import ConfigError
from lmcache_tools.doctor.model_shape import model_shape, read_model_shape

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "torch_dtype": "bfloat16",
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
}


def test_grouped_heads_are_divided_between_workers() -> None:
    shape = model_shape(LLAMA_3_8B, None, "--model x")
    assert shape.bytes_per_token == 131072
    assert 6.5e9 < shape.parameters < 7.5e9  # those of the layers; embedding and head are not worked through
    for shards in (1, 2, 4, 8):
        size = shape.chunk(256, shards, 4096)
        assert size.object_bytes == 131072 * 256 // shards + 4096
        assert size.shards == shards
    assert shape.chunk(256, 16, 4096).object_bytes == 131072 * 256 // 8 + 4096  # a head is never cut
    assert shape.chunk(256, 1, 4096).tokens_in(2**30) == 31 * 256
    assert shape.prefill_flops(256) == 2 * shape.parameters * 256


def test_mla_is_stored_once() -> None:
    shape = model_shape(DEEPSEEK_V3, None, "--model x")
    assert shape.is_mla
    assert shape.bytes_per_token == 61 * (512 + 64) * 2
    assert shape.chunk(256, 8, 4096).shards == 1
    assert 3e10 < shape.parameters < 6e10  # 37 billion are active


def test_a_smaller_cache_type_and_a_head_size_of_its_own() -> None:
    assert model_shape(LLAMA_3_8B, "fp8", "x").bytes_per_token == 65536
    assert model_shape({**LLAMA_3_8B, "head_dim": 256}, None, "x").bytes_per_token == 2 * 131072
    assert model_shape({**LLAMA_3_8B, "num_key_value_heads": None}, None, "x").bytes_per_token == 4 * 131072


def test_layers_that_keep_no_keys_are_left_out_and_named() -> None:
    kinds = ["linear_attention"] * 24 + ["full_attention"] * 8
    shape = model_shape({**LLAMA_3_8B, "layer_types": kinds}, None, "x")
    assert shape.bytes_per_token == 131072 // 4
    assert shape.remark.startswith("24 of 32 layers")


def test_a_file_a_folder_and_a_model_with_eyes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vision", "text_config": LLAMA_3_8B}))
    assert read_model_shape(tmp_path, None) == read_model_shape(tmp_path / "config.json", None)
    assert read_model_shape(tmp_path, None).bytes_per_token == 131072


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "expected the JSON object"),
        ("{}", "'num_hidden_layers' is missing; is it the config.json of a language model?"),
        (json.dumps({**LLAMA_3_8B, "hidden_size": "big"}), "'hidden_size' is 'big': expected a number"),
        (json.dumps({**LLAMA_3_8B, "torch_dtype": "int3"}), "dtype 'int3' is not known; give --kv-dtype"),
    ],
)
def test_what_is_not_a_model(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"--model .*config.json: {says}".replace("?", r"\?")):
        read_model_shape(tmp_path, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_model_shape(tmp_path / "nothing.json", None)


_NAMES = sorted({*LLAMA_3_8B, *DEEPSEEK_V3, "head_dim", "layer_types", "dtype"})
_VALUES = (
    st.none() | st.booleans() | st.integers(-1, 2**25) | st.text(max_size=4) | st.lists(st.text(max_size=9), max_size=3)
)


@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES))
def test_any_config_is_a_shape_or_a_readable_error(changes: dict[str, Any]) -> None:
    try:
        shape = model_shape({**LLAMA_3_8B, **changes}, None, "--model x")
    except ConfigError:
        with pytest.raises(ConfigError, match=r"^--model x"):
            model_shape({**LLAMA_3_8B, **changes}, None, "--model x")
    else:
        assert shape.bytes_per_token > 0
        assert shape.chunk(256, 3, 4096).tokens_in(2**50) >= 0
