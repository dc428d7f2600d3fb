"""Filters of objects by key: those of a model, of a tenant, or all."""

from __future__ import annotations

from typing import NamedTuple

from lmcache_core import ObjectKey, names_model


class KeyFilter(NamedTuple):
    """None: any."""

    model_name: str | None = None
    """A served name means all of its engines, and theirs all of its requests (`model.model_name`)."""
    cache_salt: str | None = None

    def passes(self, key: ObjectKey) -> bool:
        space = key.space
        return (self.model_name is None or names_model(self.model_name, space.model_name)) and (
            self.cache_salt is None or space.cache_salt == self.cache_salt
        )
