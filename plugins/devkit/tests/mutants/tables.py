"""Every table of planted bugs, and what became of its mutants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from plugins.devkit.tests.mutants import (
    backends,
    coordinator_views,
    every_mutant,
    eviction_policies,
    http_routes,
    l1_memories,
    l2_evictions,
    read_only,
    request_modules,
    services,
    storage_modules,
    store_policies,
    subscribers,
    transfer_channels,
)
from plugins.devkit.tests.mutants.planted import Outcome, Planted, run_checks

TABLES: Final = (
    every_mutant.PLANTED,
    backends.PLANTED,
    read_only.PLANTED,
    eviction_policies.PLANTED,
    store_policies.PLANTED,
    http_routes.PLANTED,
    request_modules.PLANTED,
    l1_memories.PLANTED,
    l2_evictions.PLANTED,
    services.PLANTED,
    coordinator_views.PLANTED,
    storage_modules.PLANTED,
    subscribers.PLANTED,
    transfer_channels.PLANTED,
)
"""One or two for each kind of offer."""
PROCESSES: Final = 3
"""For all tables: most of the time is waiting for what a mutant does not do."""


def run_tables(
    tables: Iterable[Planted], mutants: Collection[type], new_folder: Callable[[], Path], seed: int | None = None
) -> dict[str, Outcome]:
    """Those of these mutants that the tables have, each under its one check, and what is right under all of those checks."""
    nodes: list[str] = []
    for table in tables:
        checks = {mutant: bug.check for mutant, bug in table.bugs.items() if mutant in mutants}
        nodes += [table.node(mutant, check) for mutant, check in checks.items()]
        nodes += [table.node(table.right, check) for check in sorted(set(checks.values()))]
    parts = [part for first in range(PROCESSES) if (part := nodes[first::PROCESSES])]
    with ThreadPoolExecutor(PROCESSES) as threads:
        folders = [new_folder() for _ in parts]  # here: pytest makes its first folder on one thread only
        runs = threads.map(lambda part, folder: run_checks(part, folder, seed), parts, folders)
        return {node: outcome for each in runs for node, outcome in each.items()}
