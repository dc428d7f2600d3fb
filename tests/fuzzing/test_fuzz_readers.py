"""Ten minutes of coverage-guided fuzzing for each reader in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzzing.targets import TARGETS

SECONDS = 60
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_reader(target: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzzing", target, "--seconds", str(SECONDS), "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS + 120, check=False)
    crashes = {path.name: path.read_bytes().hex()[:400] for path in tmp_path.glob("crash-*")}
    assert done.returncode == 0, f"{crashes}\n{done.stderr[-3000:].decode(errors='replace')}"
