"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, hookimpl


@hookimpl
def lmcache_services() -> Sequence[Offer]:
    return [Offer("admin", "The HTTP API for operators", open="lmcache_admin.service:open_admin", default=True)]
