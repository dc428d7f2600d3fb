"""Groups of HTTP routes: a right one and mutants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from lmcache_core.contracts.http_route import HttpAnswer, HttpContext, HttpRefusal, HttpRequest, HttpRoute
from lmcache_core.contracts.offer import Offer
from lmcache_devkit.http_routes_suite import HttpRoutesSuite
from plugins.devkit.tests.mutants.planted import Planted


class Counted(BaseModel):
    name: str
    count: int


class Right:
    """Right in everything; each mutant below is wrong in one thing."""

    path = "/acme/{name}"
    answers: type[BaseModel] | None = Counted
    media_type = "application/json"

    def __init__(self, context: HttpContext) -> None:
        self.context = context

    def routes(self) -> Sequence[HttpRoute]:
        return [
            HttpRoute(
                "GET",
                self.path,
                self.answer,
                "Counts.",
                query={"by": "how many"},
                answers=self.answers,
                refusals={404: "it is not known"},
            )
        ]

    def answer(self, request: HttpRequest) -> Any:
        if request.path["name"].startswith("0"):
            raise HttpRefusal(404, "it is not known")
        return HttpAnswer(Counted(name=request.path["name"], count=1), media_type=self.media_type)


PLANTED = Planted("http_routes.py", Right)


@PLANTED.killed_by("no_path_is_one_of_core")
class TakesAPathOfCore(Right):
    path = "/quota/{name}"


@PLANTED.killed_by("they_are_routes_that_the_contract_allows")
class HasATrailingSlash(Right):
    path = "/acme/{name}/"


@PLANTED.killed_by("no_two_answer_the_same_request")
class AnswersTwice(Right):
    def routes(self) -> Sequence[HttpRoute]:
        return [*super().routes(), HttpRoute("GET", "/acme/all", self.answer, "All.")]


@PLANTED.killed_by("a_plain_request_is_answered_or_refused_as_it_says")
class AnswersText(Right):
    media_type = "text/plain"


@PLANTED.killed_by("a_plain_request_is_answered_or_refused_as_it_says")
class AnswersAnotherShape(Right):
    def answer(self, request: HttpRequest) -> Any:
        return HttpAnswer({"name": request.path["name"]})


@PLANTED.killed_by("a_plain_request_is_answered_or_refused_as_it_says")
class AnswersADictionary(Right):
    def answer(self, request: HttpRequest) -> Any:
        return {"name": "a", "count": 1}


@PLANTED.killed_by("whatever_path_and_query_say")
class ReadsANumber(Right):
    def answer(self, request: HttpRequest) -> Any:
        return HttpAnswer(Counted(name=request.path["name"], count=int(request.query.get("by", "1"))))


@PLANTED.killed_by("whatever_path_and_query_say")
class RefusesOtherwise(Right):
    def answer(self, request: HttpRequest) -> Any:
        if not request.path["name"].isascii():
            raise HttpRefusal(418, "only ASCII")
        return super().answer(request)


@PLANTED.killed_by("opening_them_again_gives_the_same")
class ChangesItsPath(Right):
    opened = 0

    def routes(self) -> Sequence[HttpRoute]:
        type(self).opened += 1
        self.path = f"/acme{self.opened}/{{name}}"
        return super().routes()


@PLANTED.killed_by("several_threads_are_answered_at_once")
class IsForOneThread(Right):
    def answer(self, request: HttpRequest) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return super().answer(request)


@PLANTED.killed_by("a_get_changes_nothing", "GET /acme/{name} answers otherwise after other GETs")
class CountsItsGets(Right):
    count = 0

    def answer(self, request: HttpRequest) -> Any:
        self.count += 1
        return HttpAnswer(Counted(name=request.path["name"], count=self.count))


@PLANTED.killed_by("a_get_changes_nothing", "GET /acme/all/names answers otherwise after other GETs")
class AddsWhatIsAskedFor(Right):
    """As a dictionary with defaults does."""

    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self.names: dict[str, int] = {}

    def routes(self) -> Sequence[HttpRoute]:
        return [*super().routes(), HttpRoute("GET", "/acme/all/names", self.list, "All.")]

    def answer(self, request: HttpRequest) -> Any:
        count = self.names.setdefault(request.path["name"], 1)
        return HttpAnswer(Counted(name=request.path["name"], count=count))

    def list(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(list(self.names))


@PLANTED.killed_by("a_get_changes_nothing", "answers otherwise after other GETs")
class SetsByQuery(Right):
    value = "few"

    def answer(self, request: HttpRequest) -> Any:
        self.value = request.query.get("by", self.value)
        return HttpAnswer(Counted(name=self.value, count=1))


@PLANTED.killed_by("memory_does_not_grow_with_requests", r"GET /acme/{name}: \d+ bytes more")
class RemembersWhatWasAsked(Right):
    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self.asked: dict[str, int] = {}

    def answer(self, request: HttpRequest) -> Any:
        self.asked[request.path["name"]] = 1
        return super().answer(request)


@PLANTED.killed_by("opening_does_not_ask_the_server", "context.server was asked while routes are opened")
class AsksTheServerAtOnce(Right):
    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self.server = context.server


class OffersNothing(Right):
    def routes(self) -> Sequence[HttpRoute]:
        return []


def opener(kind: type[Right]) -> Callable[[None, HttpContext], Sequence[HttpRoute]]:
    return lambda settings, context: kind(context).routes()


def offer_of(kind: type[Right]) -> Offer:
    return Offer(kind.__name__, "planted", f"{__name__}:open_{kind.__name__}")


globals().update({f"open_{kind.__name__}": opener(kind) for kind in (Right, OffersNothing, *PLANTED.bugs)})


class TestOffersNothing(HttpRoutesSuite):
    offer = offer_of(OffersNothing)


globals().update(PLANTED.suites(HttpRoutesSuite, __name__, offer_of))
