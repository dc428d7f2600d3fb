"""Owner, reader and coordinator are killed, stopped and cut off, in each state of a transfer, again and again.

Lookups are answered in time, no request fails at a server that runs, leases end at their deadlines, L1's accounting is right,
and the peer is used again.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.rounds import Site

ROUNDS = 500 if os.environ.get("LMCACHE_TEST_LONG") else 40


@pytest.mark.parametrize("engine", ["tcp", "auto"])
@pytest.mark.parametrize("rounds", [4, pytest.param(ROUNDS, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])])
def test_after_each_fault_all_is_right(engine: str, rounds: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, engine, seed=1)
        for number in range(rounds):
            print(f"round {number}: {site.round()}", flush=True)
            assert site.failures == []
        print(dict(site.counts))
