"""The kept corpus of every fuzz target runs without a fault, and so do well-formed inputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuzzing import corpus, native
from tests.fuzzing.targets import TARGETS, seeds


@pytest.mark.parametrize("target", TARGETS)
def test_readers_hold_for_the_corpus(target: str) -> None:
    inputs = corpus.load(target)
    assert inputs, "a target without a corpus"
    for data in [*inputs, *seeds(target)]:
        TARGETS[target](data)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("target", native.TARGETS)
def test_compiled_readers_hold_for_the_corpus(target: str, tmp_path: Path) -> None:
    inputs = sorted(corpus.unpack(target, tmp_path / "corpus").iterdir())
    assert inputs, "a target without a corpus"
    program = native.build(target, tmp_path, fuzzer=None)
    done = subprocess.run([program, *inputs], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
