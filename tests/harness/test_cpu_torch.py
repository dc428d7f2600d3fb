"""Which build of torch is installed is read off its version file."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.engine_process import HERE
from scripts.cpu_torch import is_cpu_build, pinned_torch


@pytest.mark.parametrize(
    ("cuda", "is_cpu"),
    [
        ("cuda: Optional[str] = None", True),
        ("cuda = None", True),
        ("cuda: Optional[str] = '12.8'", False),
        ("cuda = '13.0'", False),
        ("cudart = None\ncuda = '13.0'", False),
    ],
)
def test_the_build(cuda: str, is_cpu: bool, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\n{cuda}\nhip = None\n")
    assert is_cpu_build(tmp_path) is is_cpu


def test_the_engine_pins_torch() -> None:
    assert pinned_torch(HERE / "requirements-engine.txt").startswith("torch==")
