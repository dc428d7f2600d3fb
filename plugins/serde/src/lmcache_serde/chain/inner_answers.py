"""Polls an adapter's completion queue and calls the submitter of each job with its outcome."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_core import BuffersReleased, FaultLog, Inbox, JobDone, JobId, L2Adapter, Outcome

_PERIOD_SECONDS: Final = 1.0
"""How often an adapter is asked that has given its descriptor back and still owes an answer."""

OnDone = Callable[[Sequence[Outcome], bool], None]
"""The outcomes, and whether the buffers are free."""


@dataclass(slots=True)
class _Asked:
    size: int
    on_done: OnDone
    on_released: Callable[[], None]
    answered: bool = False


class InnerAnswers:
    """One daemon thread, on which the callbacks run.  It ends after `end` when every job is over, which may be long
    after the adapter was closed: until then buffers are borrowed.  What a callback raises is logged, and so is
    whatever the adapter answers that the contract does not allow: the job is FAILED then."""

    def __init__(self, name: str, inner: L2Adapter, faults: FaultLog) -> None:
        self._inner = inner
        self._faults = faults
        self._lock = threading.Lock()
        """Held while `inner` is given a job, so that no answer comes before it is known whose it is.  Guards the next."""
        self._asked: dict[JobId, _Asked] = {}
        self._over = False
        """The thread has ended.  Guarded by the lock, too."""
        self._ending = False
        self._wakes = Inbox[None]()
        self._thread = threading.Thread(target=self._listen, name=f"{name}-answers", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], JobId], size: int, on_done: OnDone, on_released: Callable[[], None]) -> bool:
        """Give `inner` a job of `size` objects.  `on_done` is called once; `on_released` is called once after a `on_done`
        that says that buffers are still in use.  False where `inner` raised, or the thread has ended: then neither is."""
        with self._lock:
            if self._over:
                return False
            try:
                job = call()
            except (Exception, SystemExit):  # noqa: BLE001 - a plugin's boundary
                self._faults.exception("the adapter inside failed to take a job")
                return False
            self._asked[job] = _Asked(size, on_done, on_released)
        return True

    def end(self) -> None:
        """Nothing is submitted any more."""
        self._ending = True
        self._wakes.wake()

    def join(self, timeout_seconds: float) -> bool:
        """Is every job over?"""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _listen(self) -> None:
        while not self._is_over():
            try:
                self._wait()
                drained = list(self._inner.completions().drain())
            except (Exception, SystemExit):  # noqa: BLE001 - a plugin's boundary: the next answer must be heard
                self._faults.exception("answers of the adapter inside were lost")
                self._pause()
                continue
            for completion in drained:
                try:
                    self._take(completion)
                except Exception:  # noqa: BLE001 - a thread's top: one answer that is wrong must not lose the others
                    self._faults.exception("an answer of the adapter inside was lost")

    def _is_over(self) -> bool:
        with self._lock:
            self._over = self._ending and not self._asked
            return self._over

    def _wait(self) -> None:
        descriptor = self._inner.completions().fileno()
        poll = select.poll()
        poll.register(self._wakes.fileno(), select.POLLIN)
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
        ready = dict(poll.poll(None if descriptor >= 0 and not self._ending else _PERIOD_SECONDS * 1000))
        if ready.get(descriptor, 0) & select.POLLNVAL:
            self._pause()
        self._wakes.clear_wakes()

    def _pause(self) -> None:
        """Where a poll would return at once, for ever: the adapter names a closed descriptor, or raises."""
        poll = select.poll()
        poll.register(self._wakes.fileno(), select.POLLIN)
        poll.poll(_PERIOD_SECONDS * 1000)
        self._wakes.clear_wakes()

    def _take(self, completion: object) -> None:
        if not isinstance(completion, JobDone | BuffersReleased):
            self._faults.error(f"the adapter inside completed with {completion!r:.80}, which is not a completion")
            return
        with self._lock:
            asked = self._asked.get(completion.job) if isinstance(completion.job, int) else None
        if asked is None:
            self._faults.error(f"the adapter inside answered job {completion.job!r:.80}, which it was not given")
            return
        if isinstance(completion, BuffersReleased):
            self._forget(completion.job)
            if asked.answered:
                asked.on_released()
            else:
                self._faults.error("the adapter inside released a job that it had not answered")
                asked.on_done((Outcome.FAILED,) * asked.size, True)
            return
        if asked.answered:
            self._faults.error("the adapter inside answered a job twice")
            return
        asked.answered = True
        if completion.released:
            self._forget(completion.job)
        asked.on_done(self._checked(completion.outcomes, asked.size), completion.released)

    def _forget(self, job: JobId) -> None:
        with self._lock:
            del self._asked[job]

    def _checked(self, outcomes: Sequence[Outcome], size: int) -> Sequence[Outcome]:
        is_right = isinstance(outcomes, tuple | list) and len(outcomes) == size
        if is_right and all(isinstance(outcome, Outcome) for outcome in outcomes):
            return outcomes
        self._faults.error(f"the adapter inside gave {outcomes!r:.80} as outcomes of {size} objects")
        return (Outcome.FAILED,) * size
