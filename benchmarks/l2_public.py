"""The public server's own `lmcache bench l2` on the same directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.l2_cell import MIB, Speed
from benchmarks.peer import BenchmarkError
from benchmarks.transfer import PUBLIC_SERVER, public_is_installed
from demo.environment import quiet_environment

NAMES: Final = ("fs", "fs_native")
"""Its adapters that run here: raw_block's engine is not in its package."""
is_installed = public_is_installed
_SECONDS_MAX: Final = 180


def run(settings: Mapping[str, Any], size_mib: int, depth: int, rounds: int) -> dict[str, Speed]:
    """By verb.  Each of its rounds moves one batch of `depth` objects and waits for the last of them.  Raises BenchmarkError
    when it fails, or moved less than was asked for."""
    command = [
        str(PUBLIC_SERVER),
        *("bench", "l2", "--l2-adapter", json.dumps(settings), "--format", "json"),
        *("--num-keys", str(depth), "--in-flight", "1", "--data-size-kb", str(size_mib * 1024)),
        *("--l1-align-bytes", "4096", "--rounds", str(rounds), "--warmup-rounds", "1"),
        *("--lookup-max-hit-rate", "1.0"),
    ]
    environment = {**quiet_environment(), "LMCACHE_DISABLE_BANNER": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"the public server's benchmark did not end within {_SECONDS_MAX} s") from None
    if done.returncode:
        raise BenchmarkError(f"the public server's benchmark failed:\n{done.stderr[-1000:]}")
    return speeds(done.stdout)


def speeds(output: str) -> dict[str, Speed]:
    """From what it prints: progress, a JSON object, and more progress."""
    at = output.index("\n{\n")
    report, _ = json.JSONDecoder().raw_decode(output, at + 1)
    metrics = report["metrics"]
    round_bytes = metrics["config"]["data_per_round_mb"] * MIB
    found = {}
    for name, measured in metrics.items():
        if name.startswith("op_") and (verb := measured["operation"].lower()) in ("store", "load"):
            if measured["total_success"] != measured["total_keys"]:
                raise BenchmarkError(
                    f"the public server's {verb}: {measured['total_success']} of {measured['total_keys']}"
                )
            found[verb] = Speed(round_bytes / 1e6 / measured["duration_avg_ms"])
    return found
