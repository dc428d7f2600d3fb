"""What a replacement algorithm does for slots of one size; `SizedPolicy` makes an eviction policy of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

MayEvict = Callable[[int], bool]


class Algorithm(ABC):
    """Slots are known from `insert` to `remove`; `hit` and `remove` are called for known slots only."""

    @abstractmethod
    def insert(self, slot: int, key: bytes | None) -> None:
        """It holds a new object.  Of one prompt the last chunk is inserted first, so that it is the oldest.

        `key` is the same when an object comes back; None where it is not known."""

    @abstractmethod
    def hit(self, slot: int) -> None:
        """A request wanted it, for the first time.  The last chunk that it hit comes first."""

    @abstractmethod
    def remove(self, slot: int, evicted: bool) -> None:
        """It is empty.  `evicted`: because it was named as a victim, and not hit since."""

    @abstractmethod
    def candidates(self, may_evict: MayEvict) -> Iterator[int]:
        """Every slot that `may_evict` allows, each once, the one that should go first first.

        The caller takes as many as it needs, and the slots stay until `remove` says which of them went: one that was hit
        in the meantime does not."""
