"""Which spaces members have named: of a model and a salt."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from lmcache_core import KeySpace
from lmcache_fleet.placements import space_number

SPACES_MAX: Final = 100_000
"""That are found by model and salt: those that changed last."""
FACTS: Final = "##"
VARIANT: Final = "%%"
"""In names of models (engine protocol, "Model names")."""


class Spaces:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._numbers: dict[KeySpace, int] = {}
        """Their numbers; the one that changed last is last."""
        self._tenants: dict[tuple[str, str], dict[KeySpace, int]] = {}
        """The same by the served name of the model, and by salt."""

    def of(self, model_name: str, salt: str) -> Mapping[KeySpace, int]:
        """Every space that a member has named, of this model and salt, with its number.  A served name means all that an
        engine makes of it; requests that depend on more than tokens have names of their own."""
        with self._lock:
            spaces = self._tenants.get((served_name(model_name), salt), {})
            is_served_name = served_name(model_name) == model_name
            return {
                space: number
                for space, number in spaces.items()
                if space.model_name == model_name or (is_served_name and VARIANT not in space.model_name)
            }

    def number(self, space: KeySpace) -> int:
        with self._lock:
            number = self._numbers.pop(space, None)
            if number is None:
                number = space_number(space.tail)
                self._tenants.setdefault((served_name(space.model_name), space.cache_salt), {})[space] = number
            self._numbers[space] = number
            if len(self._numbers) > SPACES_MAX:
                self._forget(next(iter(self._numbers)))
            return number

    def _forget(self, space: KeySpace) -> None:
        del self._numbers[space]
        tenant = (served_name(space.model_name), space.cache_salt)
        del self._tenants[tenant][space]
        if not self._tenants[tenant]:
            del self._tenants[tenant]


def served_name(model_name: str) -> str:
    """Without what an engine adds: its facts, and what a request depends on beside its tokens."""
    return model_name.partition(VARIANT)[0].partition(FACTS)[0]
