"""A whole L2 adapter from a few blocking methods that each deal with one object.

    class Folder(BlockingL2Adapter):
        def store(self, key, buffer):
            self.path(key).write_bytes(buffer.view)
            return Outcome.DONE
        ...

For a client library that is asynchronous, `AsyncL2Adapter` is the same with `async` methods.
"""

from __future__ import annotations

from abc import abstractmethod

from lmcache_core import AdapterContext, BorrowedBuffer, ObjectKey, Outcome
from lmcache_l2_adapter.backend_calls import CircuitBreaker, RetryPolicy
from lmcache_l2_adapter.executor import ThreadExecutor
from lmcache_l2_adapter.object_adapter import ObjectL2Adapter


class BlockingL2Adapter(ObjectL2Adapter):
    """Write `store`, `load` and `contains` (and `delete`, `usage`, `list_keys` where you declare them).

    What comes with it: batches are split over `workers` daemon threads, loads first; lookups have a thread of their
    own; what a method raises is retried where `is_transient` says so, and otherwise logged and FAILED for that key
    alone; a backend that only fails is left alone for a while (`CircuitBreaker`; set `contains_is_local` where
    `contains` does not ask it); pins; one completion per job; `close` within its deadline.  `store`, `delete` and
    `discard` of one object never overlap; everything else may run at the same time on several threads.  Call
    `super().__init__` last, so that a constructor that fails leaves no threads behind.
    """

    def __init__(
        self,
        context: AdapterContext,
        workers: int = 4,
        *,
        breaker: CircuitBreaker | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """`breaker` and `retry` replace those that suit most backends; give each adapter its own."""
        super().__init__(context, ThreadExecutor(f"l2-{context.name}", workers, self.__stopped), breaker, retry)

    @abstractmethod
    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """Keep the bytes of the buffer under this key.  DONE (also when it is there already), or REJECTED where there
        is no room.  This and the other methods may block, and may raise."""

    @abstractmethod
    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """Fill the buffer.  DONE only when every byte was written; MISSING; DAMAGED when the object has another length."""

    @abstractmethod
    def contains(self, key: ObjectKey) -> bool:
        """True where there is an object under this key."""

    def delete(self, key: ObjectKey) -> Outcome:
        """Remove it: DONE, or MISSING where there was none.  Never called for a pinned object."""
        return Outcome.REJECTED

    def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What was loaded under this key is DAMAGED or FOREIGN.  True: nothing is in the way of a new object now.

        Until it has returned True, the key is neither offered nor stored again in the life of this adapter; the next
        rejection or store of the key asks again."""
        return outcome is Outcome.DAMAGED and self.delete(key) in (Outcome.DONE, Outcome.MISSING)

    def stopped(self) -> None:
        """Called once, after `close`, when no thread of the adapter runs any more.  Give back what was opened, within
        what is left of the deadline, or a moment: `close` does not wait any longer."""

    def __stopped(self) -> None:
        try:
            self.stopped()
        except BaseException:  # a plugin's boundary, at a thread's top
            self.context.logger.exception("stopping an l2 adapter raised adapter=%s", self.context.name)
