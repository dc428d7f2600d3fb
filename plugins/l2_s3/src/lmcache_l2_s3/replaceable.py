"""Objects that are of no use, and give way to the next store of their key."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from lmcache_core import ObjectKey

ENTRIES_MAX: Final = 4096
"""One more, and the oldest is forgotten: it is offered again, and found out by its next load."""


class Useless(NamedTuple):
    """The version of an object that may be replaced, and its length."""

    etag: str
    length: int


class Replaceable:
    """By object.  One event loop."""

    def __init__(self) -> None:
        self._found: Final = OrderedDict[bytes, Useless]()

    def note(self, key: ObjectKey, found: Useless) -> None:
        self._found[key.object_id] = found
        if len(self._found) > ENTRIES_MAX:
            self._found.popitem(last=False)

    def get(self, key: ObjectKey) -> Useless | None:
        return self._found.get(key.object_id)

    def forget(self, key: ObjectKey) -> None:
        self._found.pop(key.object_id, None)
