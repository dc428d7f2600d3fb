"""Hits of an eviction policy beside LRU and the best classic one, on patterns of requests and on recorded traces.

.venv/bin/python -m benchmarks.policy_traces [--policy LeastHitDensity] [--seeds 3] [--pattern chat] [--trace FILE]

The replay is that of `lmcache simulate`.  A seed changes the requests of a pattern, and the keys of blocks everywhere.
Each line has a capacity in % of the distinct blocks, hits in % of the blocks asked for (mean over the seeds), and how far
the policy is above LRU and above the best classic: mean, and the worst of the seeds.  `!` marks more than 0.5 points below LRU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.policy_traces.catalog import PATTERNS
from benchmarks.policy_traces.request_list import RequestList, requests_of, trace_of
from lmcache_core import EvictionPolicy
from lmcache_core.app.console.plugin_commands import LoadedCatalog
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_policies.simulate.replay import BlockSize, Replay
from lmcache_policies.simulate.trace import Trace
from lmcache_policies.simulate.trace_file import read_trace

SHARES: Final = (2, 5, 10, 20)
LRU: Final = "LRU"
CLASSICS: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("ARC", {}),
    ("S3FIFO", {"small_share": 0.5, "promotion_hits": 1}),
    ("W-TinyLFU", {}),
)
BELOW_LRU: Final = -0.5
Open = Callable[[], EvictionPolicy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="LeastHitDensity")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pattern", action="append", choices=PATTERNS, help="repeatable; default: all")
    parser.add_argument("--trace", action="append", default=[], help="a file that `lmcache simulate` reads; repeatable")
    args = parser.parse_args()
    plugins = LoadedCatalog(load_plugins())

    def opener(name: str, settings: Mapping[str, Any]) -> Open:
        return lambda: plugins.open("eviction_policy", name, settings)

    ours, lru = opener(args.policy, {}), opener(LRU, {})
    classics = [opener(*classic) for classic in CLASSICS]
    print(f"{'':22}   %    LRU  best  ours   above LRU    above best")
    for name in args.pattern or (() if args.trace else PATTERNS):
        compare(name, PATTERNS[name], args.seeds, ours, lru, classics)
    for path in args.trace:
        compare(Path(path).stem, _recorded(path), args.seeds, ours, lru, classics)


def compare(
    name: str,
    pattern: Callable[[int], RequestList],
    seeds: int,
    ours: Open,
    lru: Open,
    classics: Sequence[Open],
) -> None:
    """Print a line for each capacity."""
    traces = [trace_of(name, pattern(seed), seed) for seed in range(1, seeds + 1)]
    for share in SHARES:
        rates = [_rates(trace, share, [ours, lru, *classics]) for trace in traces]
        above_lru = [rate[0] - rate[1] for rate in rates]
        above_best = [rate[0] - max(rate[1:]) for rate in rates]
        mark = "!" if min(above_lru) < BELOW_LRU else " "
        print(
            f"{name:22} {share:3} {mean(rate[1] for rate in rates):6.1f}{mean(max(rate[1:]) for rate in rates):6.1f}"
            f"{mean(rate[0] for rate in rates):6.1f}   {mean(above_lru):+5.1f} {min(above_lru):+5.1f}{mark}"
            f"  {mean(above_best):+5.1f} {min(above_best):+5.1f}",
            flush=True,
        )


def _recorded(path: str) -> Callable[[int], RequestList]:
    requests = list(requests_of(read_trace(path)))
    return lambda seed: requests


def _rates(trace: Trace, share: int, policies: Sequence[Open]) -> list[float]:
    """Hits in % of the blocks asked for."""
    capacity = max(8, trace.distinct * share // 100)
    replays = [Replay(trace, open_policy(), capacity, BlockSize(1, 512)).run() for open_policy in policies]
    return [100 * replay.hits / len(trace.blocks) for replay in replays]


if __name__ == "__main__":
    main()
