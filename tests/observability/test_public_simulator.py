"""The public server's cache simulator reads our log of lookups, and finds the hits that the server had."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from demo.server_process import ServerProcess
from tests.observability.test_traces import CHUNK, LIMITS, prompts, serve

pytestmark = pytest.mark.engine

SIMULATE = """
import json, sys
from pathlib import Path
from lmcache.tools.cache_simulator.simulator import load_lookup_events, simulate
found = simulate(load_lookup_events([Path(sys.argv[1])]), 1 << 40, 4096, fast=True)
print(json.dumps([found["total_requests"], found["total_hit_tokens"]]))
"""


@pytest.mark.slow
def test_it_finds_the_same_hits(tmp_path: Path) -> None:
    if not ENGINE_PYTHON.exists():
        pytest.skip("the public server is not installed (make setup)")
    flags = [*LIMITS, "--l1-size-gb", "0.1", "--lookup-hash-log-dir", str(tmp_path / "lookups")]
    with ServerProcess(flags, tmp_path / "log") as server:
        _, hits = serve(server, prompts(60))
    done = subprocess.run(
        [str(ENGINE_PYTHON), "-c", SIMULATE, str(tmp_path / "lookups")],
        capture_output=True,
        text=True,
        timeout=120,
        env=quiet_environment(),
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [60, hits * CHUNK]
