"""A server before a network backend, and an engine that waits no longer for a lookup than was promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from demo.server_process import ServerProcess
from tests.media_faults.site import CHUNKS, Site, options, wait_for

LOOKUP_SECONDS: Final = 1.0
ALLOWANCE_SECONDS: Final = 6.0
"""For a busy machine.  Together less than anything else here waits for a backend, so that an answer within them is one that
did not wait for the backend."""
TIMES: Final = (
    *("--lookup-timeout-seconds", str(LOOKUP_SECONDS), "--l2-timeout-seconds", "30", "--drain-seconds", "1"),
)
LATER: Final = 1000


class RemoteSite(Site):
    """Every method that asks the server raises where it does not answer in time, a lookup above all."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server, timeout_seconds=LOOKUP_SECONDS + ALLOWANCE_SECONDS)
        self._fresh = LATER

    def fresh(self, count: int) -> Sequence[int]:
        """Prompts that this server has not seen."""
        self._fresh += count
        return range(self._fresh - count, self._fresh)

    def in_l2(self, *numbers: int) -> None:
        """Store these, and forget them in L1."""
        self.store(*numbers)
        self.settle()
        self.forget_l1()

    def all_hits(self, *numbers: int) -> bool:
        """Is each of them whole, from wherever?  No more is asked once one is not."""
        return all(self.hits(number) == CHUNKS for number in numbers)

    def stored_again(self, *numbers: int) -> bool:
        """Store them once more, whether or not they arrived; are they all whole in L2 now?"""
        self.store(*numbers)
        self.settle()
        self.forget_l1()
        return self.all_hits(*numbers)

    def wait_circuit(self, *states: str) -> None:
        """Until it is in one of these; a lookup of something unknown is asked meanwhile, as a busy server would be."""

        def asked() -> bool:
            return self.circuit in states or (self.hits(*self.fresh(1)) == 0 and self.circuit in states)

        wait_for(asked)

    def comes_back(self) -> None:
        """Stores succeed again, the circuit is closed, and what is stored is there: all without a restart."""
        self.forget_l1()
        wait_for(self._stores_again)
        self.wait_circuit("closed")
        self.settle()
        wait_for(lambda: self.status["l1"]["quarantined"] == 0)
        (last,) = self.fresh(1)
        self.in_l2(last)
        wait_for(lambda: self.hits(last) == CHUNKS)
        self.check_books()

    def _stores_again(self) -> bool:
        stored = self.account["stored"]
        self.store(*self.fresh(1))
        self.settle()
        return bool(self.account["stored"] >= stored + CHUNKS)


def small_server(adapter: Mapping[str, Any], *more: str) -> list[str]:
    """Flags of a server with a short time-out of lookups."""
    return [*options(adapter), *TIMES, *more]
