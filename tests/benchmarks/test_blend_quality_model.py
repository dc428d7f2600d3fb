"""The quality benchmark's model, in the engine's environment: training goes on where it was interrupted, and grows the
model without a change; the weights that are kept are fit for the question."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from demo.engine_process import ENGINE_PYTHON, engine_environment

pytestmark = pytest.mark.engine
GROWN = """
import torch
from random import Random
from benchmarks.blend_quality.train import FIRST_LAYERS, LAYERS, batch, grown, new_model

model, documents = new_model(FIRST_LAYERS), batch(Random(1), 8, 6).documents
more = grown(model)
with torch.no_grad():
    before, after = model(documents).logits, more(documents).logits
print(more.config.num_hidden_layers == LAYERS, torch.allclose(before, after, atol=1e-4))
"""
SHARES = """
import json
from benchmarks.blend_quality.offline import loaded, outcomes
from benchmarks.blend_quality.prompts import prompts
from benchmarks.blend_quality.selectors import Row
from benchmarks.blend_quality.train import MODEL

asked = [prompt for prompt in prompts("alone", 30) if prompt.question.across]
right = outcomes(loaded(MODEL), asked, [Row("none", "none"), Row("full")], check_layer=3)
print(json.dumps({name: sum(hits) / len(hits) for (name, across), hits in right.items()}))
"""


def run(*arguments: str) -> str:
    if not ENGINE_PYTHON.exists():
        pytest.skip("no engine environment here: run `make setup`")
    command = [str(ENGINE_PYTHON), *arguments]
    done = subprocess.run(command, env=engine_environment(1), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_training_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    train = ("-m", "benchmarks.blend_quality.train", "--folder", str(tmp_path), "--seconds")
    assert "goes on" not in run(*train, "0.1")
    assert "goes on from step 1," in run(*train, "0.2")
    assert {"config.json", "generation_config.json", "model.safetensors"} < {each.name for each in tmp_path.iterdir()}


@pytest.mark.slow
def test_a_grown_model_answers_as_before() -> None:
    assert run("-c", GROWN) == "True True\n"


def test_the_kept_model_answers_and_reuse_as_it_is_costs_answers() -> None:
    shares = json.loads(run("-c", SHARES))
    assert shares["full"] >= 0.9
    assert shares["none"] <= shares["full"] - 0.3
