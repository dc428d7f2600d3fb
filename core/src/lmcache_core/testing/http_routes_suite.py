"""The laws of a group of HTTP routes, as tests.  A distribution runs them with two lines:

class TestAcme(HttpRoutesSuite):
    offer = "acme"
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.admin.core_paths import CORE_PATHS, overlap
from lmcache_core.admin.plugin_answer import encoded, fault_of_answer
from lmcache_core.app.open_http_routes import RoutesContext, fault_of_route
from lmcache_core.contracts.http_route import HttpAnswer, HttpRefusal, HttpRequest, HttpRoute
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_core.testing.fake_server_view import FakeServerView
from lmcache_core.testing.fuzzing import FUZZ
from lmcache_core.testing.offer_under_test import OfferSuite, OpenableOffer

THREADS = 4
ANSWERS = 25


class HttpRoutesSuite(OfferSuite):
    """Set `offer`; override `subscribers` where routes answer from one of your own, `server` where they read its status or its
    readings, and `bodies` where they take one."""

    kind: ClassVar[str] = "http_routes"

    @pytest.fixture
    def subscribers(self) -> Mapping[str, Subscriber]:
        """By name, those that `HttpContext.subscriber` finds.  Without any, routes that need one are left out."""
        return {}

    @pytest.fixture
    def server(self) -> ServerView:
        """What `HttpContext.server` is: one that says nothing."""
        return FakeServerView()

    @pytest.fixture
    def context(self, server: ServerView, subscribers: Mapping[str, Subscriber]) -> RoutesContext:
        return RoutesContext(lambda: server, subscribers)

    @pytest.fixture
    def routes(self, under_test: OpenableOffer, context: RoutesContext) -> Sequence[HttpRoute]:
        routes: Sequence[HttpRoute] = under_test.open(context)
        return routes

    def bodies(self, route: HttpRoute) -> Sequence[bytes]:
        """Bodies that this route takes; without any it is not called."""
        return []

    def test_they_are_routes_that_the_contract_allows(self, routes: Sequence[HttpRoute]) -> None:
        assert isinstance(routes, list | tuple)
        assert [fault for route in routes if (fault := fault_of_route(route))] == []

    def test_no_path_is_one_of_core(self, routes: Sequence[HttpRoute]) -> None:
        assert [(route.path, path) for route in routes for path in CORE_PATHS if overlap(route.path, path)] == []

    def test_no_two_answer_the_same_request(self, routes: Sequence[HttpRoute]) -> None:
        pairs = [(one, two) for i, one in enumerate(routes) for two in routes[:i] if one.method == two.method]
        assert [(one.path, two.path) for one, two in pairs if overlap(one.path, two.path)] == []

    def test_opening_them_again_gives_the_same(self, under_test: OpenableOffer, context: RoutesContext) -> None:
        first, second = under_test.open(context), under_test.open(context)
        assert [(route.method, route.path) for route in first] == [(route.method, route.path) for route in second]

    def test_a_plain_request_is_answered_or_refused_as_it_says(self, routes: Sequence[HttpRoute]) -> None:
        for route in routes:
            for body in self._bodies(route):
                self._ask(route, dict.fromkeys(_names(route), "a"), {}, body)

    @FUZZ
    @given(data=st.data())
    def test_whatever_path_and_query_say(self, data: st.DataObject, routes: Sequence[HttpRoute]) -> None:
        """Peers choose these texts; a route answers, or refuses with a status that it declares, and raises nothing else."""
        texts = st.text(max_size=40)
        for route in routes:
            path = {name: data.draw(texts.filter(bool), label=f"{route.path} {name}") for name in _names(route)}
            query = data.draw(
                st.dictionaries(st.sampled_from(sorted(route.query)), texts) if route.query else st.just({})
            )
            for body in self._bodies(route):
                self._ask(route, path, query, body)

    def test_several_threads_are_answered_at_once(self, routes: Sequence[HttpRoute]) -> None:
        failed: list[BaseException] = []

        def ask_all() -> None:
            try:
                for _ in range(ANSWERS):
                    self.test_a_plain_request_is_answered_or_refused_as_it_says(routes)
            except BaseException as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        threads = [threading.Thread(target=ask_all) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []

    def _bodies(self, route: HttpRoute) -> Sequence[bytes]:
        return [b""] if route.body is None else self.bodies(route)

    def _ask(self, route: HttpRoute, path: Mapping[str, str], query: Mapping[str, str], body: bytes) -> None:
        where = f"{route.method} {route.path} {dict(path)} {dict(query)}"
        answer: Any = None
        refusal: HttpRefusal | None = None
        try:
            answer = route.answer(HttpRequest(path, query, {"host": "localhost"}, body))
        except HttpRefusal as raised:
            refusal = raised
        if refusal is None:
            assert fault_of_answer(answer) is None, where
            _check_shape(route, answer, where)
        else:
            assert refusal.status in route.refusals, f"{where} refuses with {refusal.status}, which it does not declare"
            assert str(refusal), f"{where} refuses without a reason"


def _check_shape(route: HttpRoute, answer: HttpAnswer, where: str) -> None:
    data = encoded(answer.body)
    if 200 <= answer.status < 300:
        assert answer.media_type.partition(";")[0] == route.media_type.partition(";")[0], f"{where}: another media type"
        if route.answers is not None:
            route.answers.model_validate(json.loads(data))


def _names(route: HttpRoute) -> list[str]:
    return re.findall(r"{(\w+)}", route.path)
