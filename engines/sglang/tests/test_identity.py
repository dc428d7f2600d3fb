"""Whatever decides a page's bytes is in the name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmcache_sglang.identity import model_name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(b"first")
    return folder


def named(model: Path, **arguments: Any) -> str:
    return model_name(SimpleNamespace(model_path=str(model), **arguments), "bfloat16 64", (0, 1))


def test_equal_engines_share_and_others_do_not(model: Path) -> None:
    name = named(model)
    assert named(model, lora_paths=None, quantization_param_path=None) == name
    assert named(model, dtype="float16") != name
    assert named(model, model_impl="transformers") != name
    (model / "model.safetensors").write_bytes(b"trained")
    assert named(model) != name


@pytest.mark.parametrize("form", ["one={}", "{}", {"lora_name": "one", "lora_path": "{}"}, "mapping", "reference"])
def test_an_adapter_that_was_trained_in_place_is_another(model: Path, adapter: Path, form: Any) -> None:
    """SGLang knows those of the command line by name and path."""
    paths: Any = [json.loads(json.dumps(form).replace("{}", str(adapter)))]
    if form == "mapping":
        paths = {"one": str(adapter)}
    elif form == "reference":
        paths = [SimpleNamespace(lora_id="1", lora_name="one", lora_path=str(adapter))]
    name = named(model, lora_paths=paths)
    assert named(model, lora_paths=paths) == name != named(model)
    (adapter / "adapter_model.safetensors").write_bytes(b"again")
    assert named(model, lora_paths=paths) != name


def test_the_order_of_adapters_does_not_count(model: Path, adapter: Path) -> None:
    one, two = f"one={adapter}", f"two={adapter}"
    assert named(model, lora_paths=[one, two]) == named(model, lora_paths=[two, one]) != named(model, lora_paths=[one])


def test_an_adapter_without_files_is_said(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert named(model, lora_paths=[f"one={tmp_path / 'none'}"]) != named(model)
    assert "no files of weights were found for the adapter" in caplog.text


def test_other_scales_of_the_cache_are_another(model: Path, tmp_path: Path) -> None:
    scales = tmp_path / "scales.json"
    scales.write_text("1.0")
    name = named(model, quantization_param_path=str(scales))
    assert name != named(model)
    scales.write_text("2.0")
    assert named(model, quantization_param_path=str(scales)) != name
