"""Which objects somebody means: those of a model, of a tenant, or all."""

from __future__ import annotations

from typing import NamedTuple

from lmcache_core.model.keys import ObjectKey


class KeyFilter(NamedTuple):
    """None: any."""

    model_name: str | None = None
    cache_salt: str | None = None

    def passes(self, key: ObjectKey) -> bool:
        space = key.space
        return (self.model_name is None or space.model_name == self.model_name) and (
            self.cache_salt is None or space.cache_salt == self.cache_salt
        )
