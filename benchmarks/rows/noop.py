"""The round trip of a request with nothing to do: alone, and while another engine looks up long prompts without pause."""

from __future__ import annotations

from typing import Final

from benchmarks.frames import NOOP
from benchmarks.load import Load, running
from benchmarks.prompts import Prompt
from benchmarks.rows.site import Figures, Site, quantile

ALONE_SECONDS: Final = 1.5
BESIDE_SECONDS: Final = 3.0
LONG_CHUNKS: Final = 512
SEED: Final = 7_001


def alone(site: Site) -> Figures:
    for _ in range(site.times(200)):
        site.peer.ask(NOOP)
    with site.server_cpu() as cpu:
        taken = site.latencies(lambda: site.peer.seconds(NOOP), ALONE_SECONDS)
    return {
        "noop_p50_us": quantile(taken, 0.5) * 1e6,
        "noop_p99_us": quantile(taken, 0.99) * 1e6,
        "noop_cpu_us": cpu.seconds / len(taken) * 1e6,
    }


def beside(site: Site) -> Figures:
    site.peer.store_prompt(Prompt(LONG_CHUNKS, SEED), f"beside-{site.number()}")
    figures: Figures = {}
    for case, new_each_time in (("known", False), ("new", True)):
        with running([Load(site.port, LONG_CHUNKS, SEED, site.checks, new_each_time)]) as load:
            taken = site.latencies(lambda: site.peer.seconds(NOOP), BESIDE_SECONDS)
        figures[f"noop_p99_beside_{case}_ms"] = quantile(taken, 0.99) * 1e3
        figures[f"noop_p50_beside_{case}_ms"] = quantile(taken, 0.5) * 1e3
        figures[f"beside_{case}_lookups_s"] = sum(done.cycles / done.seconds for done in load.results)
    return figures
