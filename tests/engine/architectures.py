"""Tiny models of other shapes than the demo's, each with random weights for which every token of the context matters."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from demo.engine_process import ENGINE_PYTHON, engine_environment

CONFIGS = Path(__file__).parent / "models"
MAKE_MODEL = Path(__file__).parents[2] / "demo" / "make_model.py"


@dataclass(frozen=True)
class Architecture:
    """`name` is that of a file in `models`."""

    name: str
    block_size: int = 32
    recomputes_alike: bool = True
    """False: the engine itself says something else when it computes a token after others than when it computes all of them
    at once, so that a hit can be compared with other hits only, and not with no cache."""
    lengths: tuple[int, ...] = (700, 1_024, 3_000)
    server_may_copy: bool = True
    """False: the server refuses to (docs/engines/kv-layouts.md), and the engine runs uncached."""
    one_row: bool = False
    """True: where the server copies, a worker hits nothing before its first store, with which it is registered."""

    def make(self, folder: Path) -> Path:
        """Write the model; takes a few seconds.  Returns its directory."""
        out = folder / self.name
        command = [str(ENGINE_PYTHON), str(MAKE_MODEL), str(CONFIGS / f"{self.name}.json"), str(out)]
        subprocess.run(command, env=engine_environment(1), check=True, capture_output=True, timeout=120)
        return out


ARCHITECTURES = (
    Architecture("llama-mha"),
    Architecture("llama-windows"),
    Architecture("llama-mqa", one_row=True),
    # vLLM's reference kernels for MLA on the CPU: blocks of 16, and a decode that does not agree with their own prefill.
    # They compute no prefill behind a hit: only prompts that are hit as a whole.
    Architecture(
        "deepseek-mla", block_size=16, recomputes_alike=False, lengths=(512, 1_024, 3_072), server_may_copy=False
    ),
)
