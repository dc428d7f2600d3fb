"""The requirements of a group of HTTP routes, as tests.  A distribution runs them with two lines:

class TestAcme(HttpRoutesSuite):
    offer = "acme"
"""

from __future__ import annotations

import gc
import json
import re
import threading
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.app.open_http_routes import RoutesContext
from lmcache_core.contracts.http_route import HttpAnswer, HttpRefusal, HttpRequest, HttpRoute
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.service import Service
from lmcache_core.contracts.subscriber import Subscriber
from lmcache_devkit.check_limit import check_seconds
from lmcache_devkit.fake_server_view import FakeServerView, no_server_yet
from lmcache_devkit.fuzzing import FUZZ
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_http.admin_api.paths import ADMIN_PATHS
from lmcache_http.plugin_answer import encoded, fault_of_answer
from lmcache_http.route_checks import fault_of_route, paths_overlap

WARM_REQUESTS = 10_000
"""Number of names a route may remember before it has to forget, or to refuse."""
WARM_SECONDS = 60.0
MEMORY_REQUESTS = 500
SAMPLES = 3
REQUEST_BYTES_MAX = 20
"""What may stay of a request on average; a name alone is more."""
THREADS = 4
ANSWERS = 25


class HttpRoutesSuite(OfferSuite):
    """Set `offer`; override `subscribers` and `services` where routes answer from one of your own, `server` where they read its
    status or its samples, and `bodies` where they take one."""

    kind: ClassVar[str] = "http_routes"

    @pytest.fixture
    def subscribers(self) -> Mapping[str, Subscriber]:
        """By name, those that `HttpContext.subscriber` finds.  Without any, routes that need one are left out."""
        return {}

    @pytest.fixture
    def services(self) -> Mapping[str, Service]:
        """By name, those that `HttpContext.service` finds."""
        return {}

    @pytest.fixture
    def server(self) -> ServerView:
        """What `HttpContext.server` is: one that says nothing."""
        return FakeServerView()

    @pytest.fixture
    def context(
        self, server: ServerView, subscribers: Mapping[str, Subscriber], services: Mapping[str, Service]
    ) -> RoutesContext:
        return RoutesContext(lambda: server, subscribers, lambda: services)

    @pytest.fixture
    def routes(self, under_test: OpenableOffer, context: RoutesContext) -> Sequence[HttpRoute]:
        routes: Sequence[HttpRoute] = under_test.open(context)
        if isinstance(routes, list | tuple) and not routes:
            pytest.skip("it offers no routes; give `subscribers` those that it answers from")
        return routes

    def bodies(self, route: HttpRoute) -> Sequence[bytes]:
        """Bodies that this route takes; without any it is not called."""
        return []

    def test_they_are_routes_that_the_contract_allows(self, routes: Sequence[HttpRoute]) -> None:
        assert isinstance(routes, list | tuple)
        assert [fault for route in routes if (fault := fault_of_route(route))] == []

    def test_no_path_is_one_of_core(self, routes: Sequence[HttpRoute]) -> None:
        assert [(route.path, path) for route in routes for path in ADMIN_PATHS if paths_overlap(route.path, path)] == []

    def test_no_two_answer_the_same_request(self, routes: Sequence[HttpRoute]) -> None:
        pairs = [(one, two) for i, one in enumerate(routes) for two in routes[:i] if one.method == two.method]
        assert [(one.path, two.path) for one, two in pairs if paths_overlap(one.path, two.path)] == []

    def test_opening_does_not_ask_the_server(
        self, under_test: OpenableOffer, subscribers: Mapping[str, Subscriber], services: Mapping[str, Service]
    ) -> None:
        """There is none yet: `context.server` is for the answers."""
        if not under_test.open(RoutesContext(no_server_yet, subscribers, lambda: services)):
            pytest.skip("it offers no routes; give `subscribers` those that it answers from")

    def test_opening_them_again_gives_the_same(
        self, under_test: OpenableOffer, context: RoutesContext, routes: Sequence[HttpRoute]
    ) -> None:
        first, second = under_test.open(context), routes
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
            except BaseException as error:  # noqa: BLE001 - raised by the test
                failed.append(error)

        threads = [threading.Thread(target=ask_all) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []

    def test_a_get_changes_nothing(self, routes: Sequence[HttpRoute]) -> None:
        """Every client that may read may send it, and browsers send it by themselves.  While the server says the same, every
        GET answers the same, whatever other GETs came before; times, floats and numbers in texts are not compared."""
        gets = [route for route in routes if route.method == "GET"]
        before = [self._answers(route) for route in gets]
        for route in gets:
            for name in ("b", "c"):
                for query in ({}, *({each: value} for each in route.query for value in ("1", "a", "true"))):
                    self._ask(route, dict.fromkeys(_names(route), name), query, b"")
        for route, answers in zip(gets, before, strict=True):
            again = self._answers(route)
            assert again == answers, f"GET {route.path} answers otherwise after other GETs: {again}, before {answers}"

    @check_seconds(180)
    def test_memory_does_not_grow_with_requests(self, routes: Sequence[HttpRoute]) -> None:
        """Peers choose what they ask; what is kept of it is bounded.  Routes are asked for one name after the other."""
        for route in routes:
            bodies = self._bodies(route)
            if bodies and (_names(route) or route.query):
                grown = self._growth(route, bodies[0])
                limit = MEMORY_REQUESTS * REQUEST_BYTES_MAX
                where = f"{route.method} {route.path}"
                assert grown < limit, f"{where}: {grown} bytes more after {MEMORY_REQUESTS} further requests"

    def _growth(self, route: HttpRoute, body: bytes) -> int:
        """Bytes, after it was asked for more names than it may remember.  0 where that takes too long to tell."""
        sizes = []
        end = time.monotonic() + WARM_SECONDS
        tracemalloc.start()
        try:
            for number in range(WARM_REQUESTS + 2 * SAMPLES * MEMORY_REQUESTS):
                name = f"name-{number}"
                self._ask(route, dict.fromkeys(_names(route), name), dict.fromkeys(route.query, name), body)
                if time.monotonic() > end:
                    return 0
                if number >= WARM_REQUESTS and (number - WARM_REQUESTS) % MEMORY_REQUESTS == MEMORY_REQUESTS - 1:
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        return min(sizes[SAMPLES:]) - max(sizes[:SAMPLES])

    def _answers(self, route: HttpRoute) -> Any:
        """What it answers to a plain request, without what time alone changes."""
        answer = self._ask(route, dict.fromkeys(_names(route), "a"), {}, b"")
        if not isinstance(answer, HttpAnswer):
            return str(answer)
        data = encoded(answer.body)
        try:
            return answer.status, timeless(json.loads(data))
        except ValueError:
            return answer.status, re.sub(rb"[0-9.]+", b"0", data)

    def _bodies(self, route: HttpRoute) -> Sequence[bytes]:
        return [b""] if route.body is None else self.bodies(route)

    def _ask(self, route: HttpRoute, path: Mapping[str, str], query: Mapping[str, str], body: bytes) -> Any:
        """Its answer, or the refusal."""
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
        return answer if refusal is None else refusal


def _check_shape(route: HttpRoute, answer: HttpAnswer, where: str) -> None:
    data = encoded(answer.body)
    if 200 <= answer.status < 300:
        assert answer.media_type.partition(";")[0] == route.media_type.partition(";")[0], f"{where}: another media type"
        if route.answers is not None:
            route.answers.model_validate(json.loads(data))


def timeless(value: Any) -> Any:
    """Without floats, times since the epoch, and times as text."""
    match value:
        case dict():
            return {name: timeless(each) for name, each in value.items()}
        case list():
            return [timeless(each) for each in value]
        case float():
            return "a float"
        case bool():
            return value
        case int() if any(abs(value / unit - time.time()) < 86_400 for unit in (1, 10**3, 10**6, 10**9)):
            return "a time"
        case str():
            try:
                datetime.fromisoformat(value)
            except ValueError:
                return value
            return "a time"
    return value


def _names(route: HttpRoute) -> list[str]:
    return re.findall(r"{(\w+)}", route.path)
