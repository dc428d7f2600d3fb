"""Request modules: a right one and mutants."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from lmcache_client.operations import Operation
from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Call, Handler, HandlerMode
from lmcache_core.contracts.request_module import ModuleContext, RequestModule, SpaceFields
from lmcache_devkit.request_module_suite import RequestModuleSuite
from plugins.devkit.tests.mutants.planted import Planted

ECHO = Operation("acme_echo", None, (str, int), str, "")


class Echo(RequestModule):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, settings: None, context: ModuleContext) -> None:
        self.context = context

    def handlers(self) -> Sequence[Handler]:
        return [Handler(ECHO, self.echo, HandlerMode.POOLED)]

    def echo(self, call: Call, text: str, times: int) -> object:
        return text[:1]


PLANTED = Planted("request_modules.py", Echo)


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused")
class RaisesKeyError(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return {"a": "b"}[text]


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused")
class AnswersWithAnotherType(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return times


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused")
class DefersWithoutSayingSo(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return DEFERRED


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused")
class IsNeverAtTheRightPlace(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return ELSEWHERE


@PLANTED.killed_by("whatever_is_sent_is_answered_or_refused")
class LeaksReservations(Echo):
    """Keeps slots for a worker without a registration."""

    def echo(self, call: Call, text: str, times: int) -> object:
        layout = self.context.workers.groups("model", 1, 0)[0][0][0].layout
        self.context.storage.reserve(999, self.context.space(SpaceFields("model", ""), 1, layout), [b"x" * 32])
        return ""


@PLANTED.killed_by("no_operation_is_answered_by_two")
class TakesPing(Echo):
    def handlers(self) -> Sequence[Handler]:
        return [Handler(Operation("acme", 22, (), str, ""), self.echo, HandlerMode.POOLED)]


@PLANTED.killed_by("every_operation_travels")
class NegativeOfAnotherType(Echo):
    def handlers(self) -> Sequence[Handler]:
        return [Handler(Operation("acme_echo", None, (str, int), str, 7), self.echo, HandlerMode.POOLED)]


@PLANTED.killed_by("its_status_can_be_shown")
class StatusCannotBeShown(Echo):
    def status(self) -> dict[str, object]:
        return {"lock": threading.Lock()}


@PLANTED.killed_by("close_may_come_twice_and_without_any_request")
class ClosesOnce(Echo):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        self.closed = True


@PLANTED.killed_by("opening_and_closing_leaves_no_thread_behind")
class LeavesAThread(Echo):
    def __init__(self, settings: None, context: ModuleContext) -> None:
        super().__init__(settings, context)
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, args=(20,), daemon=True).start()


@PLANTED.killed_by("requests_at_the_same_time_do_not_disturb_each_other")
class NotThreadSafe(Echo):
    """Forgets that two requests can be there at once."""

    busy = False

    def echo(self, call: Call, text: str, times: int) -> object:
        if self.busy:
            raise RuntimeError("another one is here")
        self.busy = True
        threading.Event().wait(0.001)
        self.busy = False
        return ""


globals().update(PLANTED.suites(RequestModuleSuite, __name__))
