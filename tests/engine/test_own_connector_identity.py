"""Our connector says what its bytes mean: adapters and types of the cache are distinguished in real engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.adapters_driver import ADAPTERS
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.conftest import NEEDS_AVX512

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CHUNK_TOKENS = 128
HIDDEN, VALUES, RANK, LAYERS = 256, 128, 8, 4
"""Of the demo's model."""


def make_adapter(folder: Path, seed: int) -> Path:
    """Adapts the values of all layers, so that the KV is another one."""
    dice = np.random.default_rng(seed)
    header: dict[str, object] = {}
    data = b""
    for layer in range(LAYERS):
        for name, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (VALUES, RANK))):
            weights = dice.normal(scale=0.3, size=shape).astype(np.float32).tobytes()
            header[f"base_model.model.model.layers.{layer}.self_attn.v_proj.{name}.weight"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(weights)],
            }
            data += weights
    encoded = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapters_count_by_content(engine_environment: None, start_server: StartServer, tmp_path: Path) -> None:
    """Neither by name nor by number nor by path: one, a copy of it, and another one."""
    folders = [make_adapter(tmp_path / "one", 1), tmp_path / "copy", make_adapter(tmp_path / "other", 2)]
    shutil.copytree(folders[0], folders[1])
    port = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS)).port
    prompt = random_prompt(60, 600)
    base, one, copy, other = ([*prompt, last] for last in (7, ADAPTERS, ADAPTERS + 1, ADAPTERS + 2))
    driver = Path(__file__).with_name("adapters_driver.py")
    options = ["--adapters", json.dumps(list(map(str, folders)))]
    with EngineProcess(tmp_path / "own.log", port=port, connector="own", driver=driver, options=options) as engine:
        computed = engine.ask([one, base, other])
        assert_computed(computed)
        assert len({tuple(answer.output) for answer in computed}) == 3, "each has KV of its own"
        for asked, truth in (([one, base, other], computed), ([copy], computed[:1])):
            answers = engine.ask(asked)
            assert_cached(answers, CHUNK_TOKENS)
            assert_right(answers, truth)


@NEEDS_AVX512
def test_types_of_one_size_are_distinguished(
    engine_environment: None, start_server: StartServer, tmp_path: Path
) -> None:
    """Both are `uint8` in memory and have one shape: an engine of the other type would read nonsense."""
    port = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS)).port
    prompts = [random_prompt(61, 600)]

    def engine(dtype: str) -> EngineProcess:
        options = ["--kv-cache-dtype", dtype]
        extra = {"lmcache.lookup_timeout_ms": 20_000}
        return EngineProcess(tmp_path / f"{dtype}.log", port=port, connector="own", options=options, extra=extra)

    with engine("fp8_e4m3") as some, engine("fp8_e5m2") as others:
        for each in (some, others):
            computed = each.ask(prompts)
            assert_computed(computed)
            answers = each.ask(prompts)
            assert_cached(answers, CHUNK_TOKENS)
            assert_right(answers, computed)
