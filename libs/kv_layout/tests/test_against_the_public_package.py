"""Tensors are read as the public package reads them, so that objects of both are the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ENGINE_PYTHON = Path(__file__).parents[3] / ".venv-engine/bin/python"
READINGS = Path(__file__).with_name("public_readings.py")
RESHAPED = {4: 9, 5: 3}
"""The public package parts the folded dimension first, and names what comes out."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="no engine environment here: run `make setup`"),
]


@pytest.mark.slow
def test_both_read_the_same() -> None:
    quiet = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [ENGINE_PYTHON, READINGS], env={**os.environ, **quiet}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    readings = json.loads(done.stdout.splitlines()[-1])
    assert len(readings) > 50
    for name, theirs, ours in readings:
        if ours != "refused":
            ours[0] = RESHAPED.get(ours[0], ours[0])
        assert ours == theirs, name
