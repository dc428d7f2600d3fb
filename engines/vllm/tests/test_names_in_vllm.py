"""The model names that follow from vLLM's own configuration, without an engine."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from demo.engine_process import ENGINE_PYTHON, MODEL
from demo.environment import quiet_environment

pytestmark = pytest.mark.engine

_ASK = """
import json, os, sys
from vllm.engine.arg_utils import EngineArgs
from lmcache_vllm.engine_facts import placement
from lmcache_vllm.model_identity import engine_identity
from lmcache_vllm.placement import CacheGroup

transfer = {"kv_connector": "LMCacheNodeConnector", "kv_role": "kv_both"}
groups = (CacheGroup(("layer",), 16),)
found = {}
for name, (folder, given) in json.loads(sys.argv[1]).items():
    os.chdir(folder)
    options = {"model": ".", "skip_tokenizer_init": True, "enforce_eager": True, **given}
    config = EngineArgs(**options, kv_transfer_config=transfer).create_engine_config()
    identity = engine_identity(config, groups, stages=((0, 4),), share_with_stock=False)
    found[name] = identity.model_name(), config.model_config.model, json.loads(json.dumps(identity.facts))
from transformers import DeepseekV3Config
for name, kind in (("untouched", "yarn"), ("built", "deepseek_yarn")):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096}
    draft = DeepseekV3Config(rope_parameters=rope)
    draft.rope_parameters["rope_type"], draft.model_type = kind, "deepseek_mtp"
    config.model_config.hf_config = config.model_config.hf_text_config = draft
    identity = engine_identity(config, groups, stages=((0, 4),), share_with_stock=False)
    found[name] = identity.model_name(), ".", None
print("RESULT", json.dumps(found))
"""

_ROPE = {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`vllm serve .` in folders and with options of all kinds."""
    if not ENGINE_PYTHON.exists() or not (MODEL / "model.safetensors").exists():
        pytest.skip("no engine environment here: run `make setup`")
    root = tmp_path_factory.mktemp("models")
    for folder in ("base", "copy", "merged", "scaled"):
        shutil.copytree(MODEL, root / folder)
    merge(root / "merged/model.safetensors")
    config = json.loads((root / "scaled/config.json").read_text())
    (root / "scaled/config.json").write_text(json.dumps(config | _ROPE))
    asked = {
        "base": ("base", {}),
        "again": ("base", {"max_model_len": 512, "block_size": 64}),
        "copy": ("copy", {}),
        "by path": ("copy", {"model": str(root / "base"), "served_model_name": "."}),
        "merged": ("merged", {}),
        "scaled": ("scaled", {}),
        "overridden": ("base", {"hf_overrides": _ROPE}),
        "e4m3": ("base", {"kv_cache_dtype": "fp8_e4m3"}),
        "e5m2": ("base", {"kv_cache_dtype": "fp8_e5m2"}),
        "quantized": ("base", {"quantization": "fp8"}),
        "float32": ("base", {"dtype": "float32"}),
        "revision": ("base", {"revision": "other"}),
        "native": ("base", {"model_impl": "vllm"}),
        "transformers": ("base", {"model_impl": "transformers"}),
    }
    plan = json.dumps({name: (str(root / folder), given) for name, (folder, given) in asked.items()})
    answer = subprocess.run(
        [str(ENGINE_PYTHON), "-c", _ASK, plan], capture_output=True, text=True, env=quiet_environment(), check=False
    )
    line = next((line for line in answer.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line, answer.stderr
    found = json.loads(line.removeprefix("RESULT"))
    assert {before for name, (_, before, _) in found.items() if name != "by path"} == {"."}, (
        "stock names tell none apart"
    )
    return {name: after for name, (after, _, _) in found.items()}


def merge(path: Path) -> None:
    """As if an adapter had been merged into one tensor of it: header and size stay as they are."""
    content = bytearray(path.read_bytes())
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    name = next(name for name in header if name.endswith("q_proj.weight"))
    begin, end = (8 + int.from_bytes(content[:8], "little") + offset for offset in header[name]["data_offsets"])
    content[begin:end] = random.Random(1).randbytes(end - begin)
    path.write_bytes(content)


@pytest.mark.parametrize("alike", ["again", "copy", "by path", "native"])
@pytest.mark.slow
def test_engines_alike_have_one_name_wherever_the_model_lies(names: dict[str, str], alike: str) -> None:
    assert names[alike] == names["base"]


def test_everything_else_has_a_name_of_its_own(names: dict[str, str]) -> None:
    others = ["base", "merged", "scaled", "e4m3", "e5m2", "quantized", "float32", "revision", "transformers"]
    assert len({names[name] for name in others}) == len(others), names
    assert names["overridden"] == names["scaled"]


def test_a_stage_that_builds_a_draft_model_names_it_as_one_that_does_not(names: dict[str, str]) -> None:
    """vLLM renames its rotary embedding where it builds a layer."""
    assert names["built"] == names["untouched"] != names["base"]
