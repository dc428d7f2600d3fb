"""What is asked of vLLM's own objects, without an engine: what an engine is refused for, and what passes leave behind."""

from __future__ import annotations

import json
import subprocess

import pytest

from demo.engine_process import ENGINE_PYTHON, MODEL
from demo.environment import quiet_environment

pytestmark = pytest.mark.engine

_ASK = """
import json, sys
from types import SimpleNamespace
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
import torch
from lmcache_vllm.blend_pass import Batch, ModelPass
from lmcache_vllm.blend_refusals import check_blend
from lmcache_vllm.connector import _gives_model
from lmcache_vllm.settings import Settings

def group(kind, **given):
    spec = kind(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32, **given)
    return SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"])

full, window = group(FullAttentionSpec), group(SlidingWindowSpec, sliding_window=64)
as_full = group(FullAttentionSpec, sliding_window=64)
good = {"enable_prefix_caching": False, "worker_cls": "lmcache_vllm.BlendWorker"}
drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
rope = {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [1, 1, 2]}
asked = {
    "good": (good, [full]),
    "a window that is kept": (good, [as_full]),
    "as vLLM starts": ({}, [full]),
    "fp8": ({**good, "kv_cache_dtype": "fp8"}, [full]),
    "stages": ({**good, "pipeline_parallel_size": 2}, [full]),
    "windows": (good, [full, window]),
    "drafts": ({**good, "speculative_config": drafts}, [full]),
    "positions": ({**good, "hf_overrides": {"rope_parameters": rope}}, [full]),
}
found = {}
for name, (given, groups) in asked.items():
    options = {"model": sys.argv[1], "skip_tokenizer_init": True, "enforce_eager": True, **given}
    config = EngineArgs(**options).create_engine_config()
    try:
        caches = SimpleNamespace(kv_cache_groups=groups)
        check_blend(Settings(blend="all"), config, caches, gives_model=_gives_model(config))
        found[name] = ""
    except ValueError as error:
        found[name] = str(error)

class Runner:
    # Of an engine that can have adapters: vLLM computes the logits of a batch after a pass.

    def __init__(self, fails):
        config = EngineArgs(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True).create_engine_config()
        self.vllm_config, self.lora_config, self.lora_manager, self.fails = config, object(), self, fails
        self._adapter_manager = SimpleNamespace(_last_mapping="of the batch")
        self.during = None

    def _set_active_loras(self, prompts, tokens, requests):
        self.set_active_adapters(requests, "none")

    def set_active_adapters(self, requests, mapping):
        assert not requests
        self._adapter_manager._last_mapping = mapping

    def get_model(self):
        def call(**inputs):
            self.during = self._adapter_manager._last_mapping
            if self.fails:
                raise RuntimeError("out of memory")
        return call

for fails in (False, True):
    runner = Runner(fails)
    try:
        ModelPass(runner).run(Batch(torch.arange(3), {}, {}, {}))
    except RuntimeError:
        assert fails
    found[f"adapters, a pass that fails: {fails}"] = f"{runner.during}, then {runner._adapter_manager._last_mapping}"
print("RESULT", json.dumps(found))
"""


@pytest.fixture(scope="module")
def refused() -> dict[str, str]:
    if not ENGINE_PYTHON.exists() or not (MODEL / "model.safetensors").exists():
        pytest.skip("no engine environment here: run `make setup`")
    answer = subprocess.run(
        [str(ENGINE_PYTHON), "-c", _ASK, str(MODEL)],
        capture_output=True,
        text=True,
        env=quiet_environment(),
        check=False,
    )
    line = next((line for line in answer.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line, answer.stderr
    found: dict[str, str] = json.loads(line.removeprefix("RESULT"))
    return found


@pytest.mark.parametrize("engine", ["good", "a window that is kept"])
def test_engines_that_blend(refused: dict[str, str], engine: str) -> None:
    assert refused[engine] == ""


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("as vLLM starts", "--no-enable-prefix-caching"),
        ("as vLLM starts", "its worker class is vllm.v1.worker.cpu_worker.CPUWorker"),
        ("fp8", "its KV cache is quantized (fp8)"),
        ("stages", "a pipeline_parallel_size of 2"),
        ("windows", "--disable-hybrid-kv-cache-manager"),
        ("drafts", "speculative_config"),
        ("positions", "M-RoPE"),
    ],
)
def test_engines_that_do_not(refused: dict[str, str], engine: str, says: str) -> None:
    assert says in refused[engine]


@pytest.mark.parametrize("fails", [False, True])
def test_a_pass_leaves_the_adapters_of_the_batch_as_they_were(refused: dict[str, str], fails: bool) -> None:
    assert refused[f"adapters, a pass that fails: {fails}"] == "none, then of the batch"
