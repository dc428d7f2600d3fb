"""Layouts by their fingerprint, as engines have registered them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from lmcache_client.layout import ChunkLayout, ObjectLayout

LAYOUTS_MAX: Final = 4096
"""Beyond it, those that were registered longest ago are forgotten."""


class KnownLayouts:
    """Remembers a layout for longer than the worker that registered it, because its objects may be on their way still.
    Any thread; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes of the two below
        self._by_fingerprint: OrderedDict[bytes, ChunkLayout] = OrderedDict()
        self._listeners: tuple[Callable[[ChunkLayout], None], ...] = ()

    def learn(self, layout: ChunkLayout) -> None:
        """A worker stores and retrieves such chunks from now on.  Listeners are called with one that is new."""
        with self._lock:
            is_new = layout.fingerprint not in self._by_fingerprint
            self._by_fingerprint[layout.fingerprint] = layout
            self._by_fingerprint.move_to_end(layout.fingerprint)
            if len(self._by_fingerprint) > LAYOUTS_MAX:
                self._by_fingerprint.popitem(last=False)
            listeners = self._listeners if is_new else ()
        for listener in listeners:
            listener(layout)

    def elements(self, fingerprint: bytes, payload_bytes: int) -> ObjectLayout | None:
        """What is known of the elements of a payload: None for a layout that nobody registered, for chunks of several
        shapes, and where the length is another one."""
        layout = self._by_fingerprint.get(fingerprint)
        return layout if isinstance(layout, ObjectLayout) and layout.payload_bytes == payload_bytes else None

    def all(self) -> tuple[ChunkLayout, ...]:
        with self._lock:
            return tuple(self._by_fingerprint.values())

    def listen(self, listener: Callable[[ChunkLayout], None]) -> None:
        """Must not raise."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def ignore(self, listener: Callable[[ChunkLayout], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners = tuple([each for each in self._listeners if each != listener])
