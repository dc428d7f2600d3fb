"""The stand-ins for packages that have no build for this processor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STAND_INS = Path(__file__).with_name("stand_ins")


@pytest.mark.parametrize(
    "call",
    [
        "from sgl_kernel import rmsnorm; rmsnorm(1)",
        "import sgl_kernel; sgl_kernel.rmsnorm(1)",
        "from sgl_kernel.flash_attn import rmsnorm; rmsnorm(1)",
        "import torchvision; torchvision.transforms.rmsnorm(1)",
    ],
)
def test_whatever_is_imported_and_called_is_named_by_the_error(call: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", call], env={"PYTHONPATH": str(STAND_INS)}, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1
    assert "rmsnorm was called: a stand-in for tests" in ran.stderr


def test_what_sglang_has_itself_is_not_there() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import sgl_kernel.scalar_type"],
        env={"PYTHONPATH": str(STAND_INS)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "No module named 'sgl_kernel.scalar_type'" in ran.stderr
