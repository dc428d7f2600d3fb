"""The server moves tokens in pages of vLLM on the CPU by an order that it cannot see: vLLM's kernels have it."""

from __future__ import annotations

import subprocess

import pytest

from demo.engine_process import ENGINE_PYTHON, engine_environment
from tests.engine.conftest import NEEDS_AVX512

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300), NEEDS_AVX512]


def test_the_order_that_is_taken_as_known_is_that_of_the_kernels() -> None:
    command = [str(ENGINE_PYTHON), "-m", "tests.engine.kernel_orders"]
    done = subprocess.run(command, capture_output=True, text=True, env=engine_environment(1), check=False, timeout=200)
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(found) == 36, done.stderr[-4000:]
    assert {isa for _, isa, *_ in found} >= {"vec", "vec16"}
    wrong = [line for line in found if line[1] != "amx" and line[-1] != "True"]
    assert not wrong
