"""Who keeps the books of what an adapter has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lmcache_core.model.keys import ObjectKey


class PortWatcher(Protocol):
    """Is told what an adapter has, as its answers say so.  Called on the port's threads; must neither block nor raise."""

    def stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """The adapter has these objects now, of so many bytes each."""

    def may_have_stored(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        """It was over time with these, and has them or has them not; as long as their buffers are lent, they may come."""

    def hit(self, keys: Sequence[ObjectKey]) -> None:
        """A lookup found these."""

    def deleting(self, keys: Sequence[ObjectKey]) -> None:
        """Somebody else is about to delete these; `deleted` follows."""

    def deleted(self, keys: Sequence[ObjectKey], gone: Sequence[ObjectKey]) -> None:
        """That is over.  Some of them are gone, unless they have come again since."""
