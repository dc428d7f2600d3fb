"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    about = "translate a configuration of the public package, with a line for each key"
    return [Offer("migrate-config", about, "lmcache_engine.migrate_config:COMMAND")]
