"""Which offer is checked, with which settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

VARIABLE: Final = "LMCACHE_CHECK"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Travels in the environment, which other users cannot read: settings may hold secrets."""

    kind: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "name": self.name, "settings": self.settings})

    @classmethod
    def from_environment(cls) -> Self:
        """Raises SystemExit where the variable is missing or says nothing."""
        try:
            said = json.loads(os.environ[VARIABLE])
            return cls(said["kind"], said["name"], said.get("settings") or {})
        except (KeyError, TypeError, ValueError):
            raise SystemExit(
                f'{VARIABLE} must hold {{"kind": ..., "name": ..., "settings": {{...}}}}; use `lmcache plugins check`'
            ) from None
