"""Block sizes, connectors and transfer ways on vLLM's own layers: what is hit is right, and what cannot be right is not a
hit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo.engine_process import ENGINE_PYTHON, engine_environment
from tests.conftest import StartServer
from tests.engine.conftest import NEEDS_AVX512

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SIZES = (16, 32, 64, 128)
CHUNK_TOKENS = 128
CHUNKS = 4
SHARED = {"sharing", "engine_driven", "lmcache_driven"}
"""Ways that say the block size and not the order: they find each other's chunks."""
REFUSED = {"mla"}
"""Kinds whose pages a server does not copy (docs/engines/kv-layouts.md)."""


def run(port: int, kind: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    command = [str(ENGINE_PYTHON), "-m", "tests.engine.block_layers", str(port), kind, *map(str, sizes)]
    # The suite's engine is not part of the engine's environment.
    environment = engine_environment(1) | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins/devkit/src'}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=500)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    assert line, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(line.removeprefix("RESULT"))
    return found


def expected(kind: str, writer: tuple[str, int], reader: tuple[str, int]) -> int:
    (wrote, written_size), (reads, read_size) = writer, reader
    if kind in REFUSED and "lmcache_driven" in (wrote, reads):
        return 0
    if wrote == reads == "own" and kind == "mla":
        return CHUNKS  # each slot has a row of its own: the block size does not count
    alike = wrote == reads or {wrote, reads} <= SHARED
    return CHUNKS if alike and written_size == read_size else 0


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("gqa", (32, 64)),
        *(
            pytest.param(kind, SIZES, marks=pytest.mark.slow)
            for kind in ("gqa", "mha-bfloat16", "one-head", "head-80", "mla")
        ),
        *(pytest.param(kind, SIZES, marks=[pytest.mark.slow, NEEDS_AVX512]) for kind in ("fp8", "amx")),
    ],
)
def test_blocks_travel_between_layers_that_keep_them_alike(
    kind: str, sizes: tuple[int, ...], engine_environment: None, start_server: StartServer
) -> None:
    server = start_server("--l1-size-gb", "0.5", "--chunk-size", str(CHUNK_TOKENS))
    found = run(server.port, kind, sizes)
    assert len(found) >= (4 * min(len(sizes), 3)) ** 2
    assert [each for each in found if not each["right"]] == []
    other = [each for each in found if each["hits"] != expected(kind, (*each["writer"],), (*each["reader"],))]
    assert other == []
