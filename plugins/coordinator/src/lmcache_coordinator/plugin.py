"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    about, package = "run the coordinator of a fleet of servers", "lmcache_coordinator"
    return [Offer("coordinator", about, f"{package}.command:COMMAND", check=f"{package}.doctor:check")]


@hookimpl(optionalhook=True)
def lmcache_coordinator_states() -> Sequence[Offer]:
    module = "lmcache_coordinator.states.sqlite"
    return [
        Offer("sqlite", "quotas and secrets in a file", f"{module}:open_sqlite", settings=f"{module}:SqliteSettings"),
        Offer("memory", "quotas and secrets until the coordinator ends", f"{module}:open_memory"),
    ]
