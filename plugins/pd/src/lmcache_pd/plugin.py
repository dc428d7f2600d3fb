"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_commands() -> Sequence[Offer]:
    about = "run a proxy in front of engines that prefill and engines that decode"
    return [Offer("pd-proxy", about, "lmcache_pd.command:COMMAND")]
