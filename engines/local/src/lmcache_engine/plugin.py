"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    about, package = "translate a configuration of the public package, with a line for each key", "lmcache_engine"
    return [Offer("migrate-config", about, f"{package}.migrate_config:COMMAND", check=f"{package}.doctor:check")]
