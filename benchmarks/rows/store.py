"""Storing a prompt after the lookup that missed it: slots are reserved and committed, no data is copied."""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks.frames import LookupCycle, StorePair
from benchmarks.prompts import Prompt
from benchmarks.rows.site import Figures, Site

PROMPTS: Final = {64: 16, 512: 5}
SEED: Final = 1_000_000


def store(site: Site) -> Figures:
    """Server CPU of PREPARE_STORE and COMMIT_STORE, per chunk: the median over prompts, because some of them meet the
    allocation of more shared memory."""
    figures: Figures = {}
    for chunks, prompts in PROMPTS.items():
        seconds = []
        for _ in range(site.times(prompts)):
            number = site.number()
            token_ids = Prompt(chunks, SEED + number).token_ids()
            cycle = LookupCycle(token_ids, chunks, f"store-{number}")
            pair = StorePair(token_ids, chunks, f"store-{number}")
            site.peer.ask(cycle.lookup)
            site.peer.ask(cycle.wait)
            with site.server_cpu() as cpu:
                site.peer.store(pair, chunks)
            seconds.append(cpu.seconds)
            site.peer.ask(cycle.end)
        figures[f"store_{chunks}_cpu_us"] = median(seconds) / chunks * 1e6
    return figures
