"""Services: a right one and mutants."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from lmcache_core import Condition, Offer, ServerInfo, Service, ServiceContext, Severity
from lmcache_devkit.service_suite import ServiceSuite
from plugins.devkit.tests.mutants.planted import Planted


class Right(Service):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.closed = threading.Event()
        self.rounds = 0

    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"acme": f"tcp://127.0.0.1:{self.socket.getsockname()[1]}"}

    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"rounds": self.run}

    def run(self) -> None:
        while not self.closed.wait(0.02):
            self.context.server.conditions()
            self.rounds += 1

    def close(self) -> None:
        self.closed.set()
        self.socket.close()

    def status(self) -> Mapping[str, Any]:
        return {"rounds": self.rounds}

    def conditions(self) -> Sequence[Condition]:
        return [] if self.closed.is_set() else [Condition("acme_runs", Severity.INFO, "it runs", "none is needed")]


PLANTED = Planted("services.py", Right)


@PLANTED.killed_by(
    "it_opens_as_a_service_before_there_is_a_server", "context.server was read while services are opened"
)
class AsksTheServerAtOnce(Right):
    def __init__(self, context: ServiceContext) -> None:
        self.info = context.server.info
        super().__init__(context)


@PLANTED.killed_by("its_endpoints_are_addresses_by_name", "endpoint acme: .* is not an address")
class SaysAPort(Right):
    @property
    def endpoints(self) -> Mapping[str, str]:
        return {"acme": str(self.socket.getsockname()[1])}


@PLANTED.killed_by("its_status_is_json_at_any_time", "not JSON serializable")
class SaysASet(Right):
    def status(self) -> Mapping[str, Any]:
        return {"rounds": {self.rounds}}


@PLANTED.killed_by("its_status_is_json_at_any_time")
class AsksAClosedSocket(Right):
    def status(self) -> Mapping[str, Any]:
        return {"port": self.socket.getsockname()[1]}


@PLANTED.killed_by("its_conditions_are_conditions_at_any_time", "is not a Condition")
class ReportsText(Right):
    def conditions(self) -> Sequence[Any]:
        return ["it runs"]


@PLANTED.killed_by("threads_are_asked_at_once", "only one at a time")
class IsForOneThread(Right):
    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self.lock = threading.Lock()

    def status(self) -> Mapping[str, Any]:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("only one at a time")
        time.sleep(0.001)
        self.lock.release()
        return super().status()


@PLANTED.killed_by("no_thread_fails", "no luck")
class FailsAtOnce(Right):
    def run(self) -> None:
        raise RuntimeError("no luck")


@PLANTED.killed_by("close_ends_what_it_began", "threads that do not return after close: rounds")
class GoesOn(Right):
    def close(self) -> None:
        self.socket.close()


@PLANTED.killed_by("close_ends_what_it_began_without_a_drain", "what outlives close: thread acme")
class LeavesAThread(Right):
    def stop(self, seconds: float) -> None:
        if seconds == 0:
            threading.Thread(target=time.sleep, args=(20,), name="acme", daemon=True).start()


@PLANTED.killed_by("close_ends_what_it_began", "what outlives close: process")
class LeavesAProgram(Right):
    def start(self, server: ServerInfo) -> None:
        self.program = subprocess.Popen(["sleep", "20"])


@PLANTED.killed_by("close_ends_what_it_began", "what outlives close: file socket")
class LeavesASocket(Right):
    kept: ClassVar[list[socket.socket]] = []

    def close(self) -> None:
        self.closed.set()
        self.kept.append(self.socket)


@PLANTED.killed_by("close_without_start_gives_everything_back")
class ClosesWhatItStarted(Right):
    def start(self, server: ServerInfo) -> None:
        self.began = time.monotonic()

    def close(self) -> None:
        super().close()
        self.took = time.monotonic() - self.began


@PLANTED.killed_by("it_can_be_opened_again", "once only")
class LivesOnce(Right):
    lives = 0

    def start(self, server: ServerInfo) -> None:
        type(self).lives += 1
        if self.lives > 1:
            raise RuntimeError("once only")


def opener(kind: type[Right]) -> Callable[[None, ServiceContext], Service]:
    return lambda settings, context: kind(context)


def offer_of(kind: type[Right]) -> Offer:
    return Offer(kind.__name__, "planted", f"{__name__}:open_{kind.__name__}")


globals().update({f"open_{kind.__name__}": opener(kind) for kind in (Right, *PLANTED.bugs)})

globals().update(PLANTED.suites(ServiceSuite, __name__, offer_of))
