"""Four engines at once, each with a prompt of its own that is there in full."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.load import Load, running
from benchmarks.prompts import Prompt
from benchmarks.rows.site import Figures, Site

CLIENTS: Final = 4
CHUNKS: Final = 64
SECONDS: Final = 3.0
SEED: Final = 7_200


def together(site: Site) -> Figures:
    for client in range(CLIENTS):
        site.peer.store_prompt(Prompt(CHUNKS, SEED + client), f"clients-{site.number()}")
    loads = [Load(site.port, CHUNKS, SEED + client, site.checks) for client in range(CLIENTS)]
    with running(loads) as load, site.server_cpu() as cpu:
        time.sleep(site.seconds(SECONDS))
    cycles = sum(done.cycles for done in load.results)
    return {
        "clients_cycles_s": sum(done.cycles / done.seconds for done in load.results),
        "clients_cpu_ms": cpu.seconds / cycles * 1e3,
    }
