"""What was loaded from a backend stays in L1, for the next request that wants it.

For prompts that many requests share.  Loaded objects then compete for L1 with what is stored there.
"""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import AdapterFacts, Bitmap, PrefetchPlan, PrefetchPolicy


class Retain(PrefetchPolicy):
    """Each object comes from the first healthy adapter that has it."""

    def plan(self, found: Sequence[Bitmap], adapters: Sequence[AdapterFacts]) -> PrefetchPlan:
        healthy = [index for index, adapter in enumerate(adapters) if adapter.healthy]
        keys = range(found[0].size if found else 0)
        return PrefetchPlan(tuple(next((a for a in healthy if key in found[a]), None) for key in keys), retain=True)


def open_retain(settings: None) -> PrefetchPolicy:
    return Retain()
