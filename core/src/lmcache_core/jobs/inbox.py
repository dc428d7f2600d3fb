"""A queue of messages that a thread can poll."""

from __future__ import annotations

import os
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Posted from any thread, drained by one.  Its descriptor polls readable while something is waiting."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._awake = False
        """The descriptor is readable, or will be before `post` returns."""

    def __len__(self) -> int:
        return len(self._items)

    def fileno(self) -> int:
        return self._event

    def post(self, item: Item) -> None:
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Make the descriptor readable without posting anything.  A closed inbox ignores it."""
        if self._event >= 0 and not self._awake:
            self._awake = True
            os.eventfd_write(self._event, 1)

    def clear_wakes(self) -> None:
        """Make the descriptor unreadable.  To be called before items are taken: what is posted later wakes the next poll.
        A closed inbox has none."""
        if self._event >= 0:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass
        self._awake = False  # after the read: a wake that is skipped until here is for what the caller takes next

    def take(self) -> Item | None:
        """The oldest item, or None.  Never blocks."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def drain(self) -> list[Item]:
        """Everything that is waiting, oldest first.  Never blocks."""
        self.clear_wakes()
        items = []
        while (item := self.take()) is not None:
            items.append(item)
        return items

    def close(self) -> None:
        event, self._event = self._event, -1
        if event >= 0:
            os.close(event)

    def __del__(self) -> None:
        # A post may follow the end of who drains it, so an inbox can outlive that and goes with its last owner.
        self.close()
