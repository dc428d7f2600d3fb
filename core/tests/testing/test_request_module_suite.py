"""Core's own request modules keep the laws, and modules that break one are found by it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence

import pytest

from lmcache_core.contracts.operation import DEFERRED, ELSEWHERE, Call, Handler, HandlerMode, Operation
from lmcache_core.contracts.request_module import ModuleContext, RequestModule, SpaceFields
from lmcache_core.testing.module_bench import ModuleBench
from lmcache_core.testing.request_module_suite import RequestModuleSuite

ECHO = Operation("acme_echo", None, (str, int), str, "")


class TestManagement(RequestModuleSuite):
    offer = "management"


class TestLookup(RequestModuleSuite):
    offer = "lookup"


class TestEngineDriven(RequestModuleSuite):
    offer = "engine_driven"


class Echo(RequestModule):
    """Right in everything; each mutant below is wrong in one thing."""

    def __init__(self, context: ModuleContext) -> None:
        self.context = context

    def handlers(self) -> Sequence[Handler]:
        return [Handler(ECHO, self.echo, HandlerMode.POOLED)]

    def echo(self, call: Call, text: str, times: int) -> object:
        return text[:1]


class RaisesKeyError(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return {"a": "b"}[text]


class AnswersWithAnotherType(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return times


class DefersWithoutSayingSo(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return DEFERRED


class IsNeverAtTheRightPlace(Echo):
    def echo(self, call: Call, text: str, times: int) -> object:
        return ELSEWHERE


class LeaksReservations(Echo):
    """Holds slots for a worker that no registration stands behind."""

    def echo(self, call: Call, text: str, times: int) -> object:
        layout = self.context.workers.groups("model", 1, 0)[0][0][0].layout
        self.context.storage.reserve(999, self.context.space(SpaceFields("model", ""), 1, layout), [b"x" * 32])
        return ""


class TakesPing(Echo):
    def handlers(self) -> Sequence[Handler]:
        return [Handler(Operation("acme", 22, (), str, ""), self.echo, HandlerMode.POOLED)]


class NegativeOfAnotherType(Echo):
    def handlers(self) -> Sequence[Handler]:
        return [Handler(Operation("acme_echo", None, (str, int), str, 7), self.echo, HandlerMode.POOLED)]


class StatusCannotBeShown(Echo):
    def status(self) -> dict[str, object]:
        return {"lock": threading.Lock()}


class ClosesOnce(Echo):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        self.closed = True


class LeavesAThread(Echo):
    def __init__(self, context: ModuleContext) -> None:
        super().__init__(context)
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait, args=(20,), daemon=True).start()


class NotThreadSafe(Echo):
    """Forgets that two requests can be there at once."""

    busy = False

    def echo(self, call: Call, text: str, times: int) -> object:
        if self.busy:
            raise RuntimeError("somebody else is here")
        self.busy = True
        threading.Event().wait(0.001)
        self.busy = False
        return ""


KILLED_BY = {
    RaisesKeyError: "test_whatever_is_sent_is_answered_or_refused",
    AnswersWithAnotherType: "test_whatever_is_sent_is_answered_or_refused",
    DefersWithoutSayingSo: "test_whatever_is_sent_is_answered_or_refused",
    IsNeverAtTheRightPlace: "test_whatever_is_sent_is_answered_or_refused",
    LeaksReservations: "test_whatever_is_sent_is_answered_or_refused",
    TakesPing: "test_no_operation_is_answered_by_two",
    NegativeOfAnotherType: "test_every_operation_travels",
    StatusCannotBeShown: "test_its_status_can_be_shown",
    ClosesOnce: "test_close_may_come_twice_and_without_any_request",
    LeavesAThread: "test_opening_and_closing_leaves_no_thread_behind",
    NotThreadSafe: "test_requests_at_the_same_time_do_not_disturb_each_other",
}
LAWS = sorted(name for name in dir(RequestModuleSuite) if name.startswith("test_"))


class Direct:
    """Stands in for an offer that is not installed."""

    def __init__(self, kind: type[Echo]) -> None:
        self._kind = kind

    def open(self, context: ModuleContext) -> RequestModule:
        return self._kind(context)


def judge(kind: type[Echo], law: str) -> None:
    """Call one law with what its fixtures would give it."""
    method = getattr(RequestModuleSuite(), law)
    with ModuleBench() as bench:
        fixtures = {"bench": bench, "under_test": Direct(kind), "settings": {}}
        wanted = inspect.signature(method).parameters
        if "module" in wanted:
            fixtures["module"] = kind(bench.context)
        method(**{name: fixtures[name] for name in wanted})


@pytest.mark.parametrize("law", LAWS)
def test_a_module_that_is_right_keeps_every_law(law: str) -> None:
    judge(Echo, law)


@pytest.mark.parametrize("mutant", KILLED_BY, ids=lambda kind: kind.__name__)
def test_a_planted_bug_is_found_by_the_law_that_is_about_it(mutant: type[Echo]) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        judge(mutant, KILLED_BY[mutant])
