"""Routes that are right keep the laws, and routes that break one are found by it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from lmcache_core.app.open_http_routes import RoutesContext
from lmcache_core.contracts.http_route import HttpAnswer, HttpContext, HttpRefusal, HttpRequest, HttpRoute
from lmcache_core.contracts.offer import Offer
from lmcache_core.testing.fake_server_view import FakeServerView
from lmcache_core.testing.http_routes_suite import HttpRoutesSuite
from lmcache_core.testing.offer_under_test import OpenableOffer


class Counted(BaseModel):
    name: str
    count: int


class Right:
    """Right in everything; each mutant below is wrong in one thing."""

    path = "/acme/{name}"
    answers: type[BaseModel] | None = Counted
    media_type = "application/json"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def routes(self) -> Sequence[HttpRoute]:
        return [
            HttpRoute(
                "GET",
                self.path,
                self.answer,
                "Counts.",
                query={"by": "how many"},
                answers=self.answers,
                refusals={404: "nobody is called so"},
            )
        ]

    def answer(self, request: HttpRequest) -> Any:
        if request.path["name"].startswith("0"):
            raise HttpRefusal(404, "nobody is called so")
        with self._lock:
            self._count += 1
        return HttpAnswer(Counted(name=request.path["name"], count=self._count), media_type=self.media_type)


class TakesAPathOfCore(Right):
    path = "/quota/{name}"


class HasATrailingSlash(Right):
    path = "/acme/{name}/"


class AnswersTwice(Right):
    def routes(self) -> Sequence[HttpRoute]:
        return [*super().routes(), HttpRoute("GET", "/acme/all", self.answer, "All.")]


class AnswersText(Right):
    media_type = "text/plain"


class AnswersAnotherShape(Right):
    def answer(self, request: HttpRequest) -> Any:
        return HttpAnswer({"name": request.path["name"]})


class AnswersADictionary(Right):
    def answer(self, request: HttpRequest) -> Any:
        return {"name": "a", "count": 1}


class ReadsANumber(Right):
    def answer(self, request: HttpRequest) -> Any:
        return HttpAnswer(Counted(name=request.path["name"], count=int(request.query.get("by", "1"))))


class RefusesOtherwise(Right):
    def answer(self, request: HttpRequest) -> Any:
        if not request.path["name"].isascii():
            raise HttpRefusal(418, "only ASCII")
        return super().answer(request)


class ChangesItsPath(Right):
    opened = 0

    def routes(self) -> Sequence[HttpRoute]:
        type(self).opened += 1
        self.path = f"/acme{self.opened}/{{name}}"
        return super().routes()


class IsForOneThread(Right):
    def answer(self, request: HttpRequest) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return super().answer(request)


KILLED_BY = {
    TakesAPathOfCore: "test_no_path_is_one_of_core",
    HasATrailingSlash: "test_they_are_routes_that_the_contract_allows",
    AnswersTwice: "test_no_two_answer_the_same_request",
    AnswersText: "test_a_plain_request_is_answered_or_refused_as_it_says",
    AnswersAnotherShape: "test_a_plain_request_is_answered_or_refused_as_it_says",
    AnswersADictionary: "test_a_plain_request_is_answered_or_refused_as_it_says",
    ReadsANumber: "test_whatever_path_and_query_say",
    RefusesOtherwise: "test_whatever_path_and_query_say",
    ChangesItsPath: "test_opening_them_again_gives_the_same",
    IsForOneThread: "test_several_threads_are_answered_at_once",
}
LAWS = sorted(name for name in dir(HttpRoutesSuite) if name.startswith("test_"))
KIND: list[type[Right]] = [Right]
"""What `open_kind` opens."""


def open_kind(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    return KIND[-1]().routes()


def judge(kind: type[Right], law: str) -> None:
    """Call one law with what its fixtures would give it."""
    KIND.append(kind)
    view = FakeServerView()
    context = RoutesContext(lambda: view, {})
    offer = OpenableOffer(Offer("acme", "for tests", f"{__name__}:open_kind"), {})
    given = {"under_test": offer, "context": context, "routes": offer.open(context)}
    try:
        method = getattr(HttpRoutesSuite(), law)
        method(**{name: given[name] for name in inspect.signature(method).parameters})
    finally:
        KIND.pop()


@pytest.mark.parametrize("law", LAWS)
def test_routes_that_are_right_keep_every_law(law: str) -> None:
    judge(Right, law)


@pytest.mark.parametrize("mutant", KILLED_BY, ids=lambda kind: kind.__name__)
def test_a_planted_bug_is_found_by_the_law_that_is_about_it(mutant: type[Right]) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        judge(mutant, KILLED_BY[mutant])


def test_every_law_finds_a_bug() -> None:
    assert sorted(set(KILLED_BY.values())) == LAWS
