"""The requirements of a view of a coordinator, as tests.  A distribution runs them with two lines:

class TestAcme(CoordinatorViewSuite):
    offer = "acme"

It needs `lmcache-devkit[fleet]`.  What a view holds is compared through its GET routes.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import HttpAnswer, HttpRefusal, HttpRequest, HttpRoute
from lmcache_devkit.borrowed_memory import SPACE, object_key
from lmcache_devkit.fuzzing import FUZZ
from lmcache_devkit.http_routes_suite import timeless
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_fleet.messages import L1, JournalPage, Kind, Run, SnapshotPage
from lmcache_fleet.view import CoordinatorView
from lmcache_http.plugin_answer import encoded, fault_of_answer
from lmcache_http.route_checks import fault_of_route, paths_overlap

MEMBERS: Final = ("check-1", "check-2", "check-3")
SPACES: Final = (SPACE.tail, SPACE.tail.replace(b"llama", b"llame", 1))
ROUNDS = 60
ROUND_BYTES_MAX = 64
"""What may stay of a round on average: of one key alone, and a round has 600."""

BATCHES: Final = st.lists(
    st.tuples(st.sampled_from(Kind), st.sampled_from(range(len(SPACES))), st.integers(0, 20), st.integers(1, 5)),
    min_size=1,
    max_size=6,
)
"""A kind of change of some keys: number of the space, of the first key, and how many."""
Batches = Sequence[tuple[Kind, int, int, int]]


class Source:
    """Makes the pages of one source of one member, numbered as a coordinator admits them."""

    def __init__(self, instance: str, content: str, source: str = L1, incarnation: str = "1") -> None:
        self._about: dict[str, Any] = {
            "instance": instance,
            "incarnation": incarnation,
            "source": source,
            "content": content,
            "backend": "" if source == L1 else "fs",
            "shared": source != L1,
            "spaces": SPACES,
        }
        self._next = 0
        self._last: tuple[Run, ...] = ()

    def journal(self, batches: Batches) -> JournalPage:
        first, self._last = self._next, tuple(_run(*batch) for batch in batches)
        page = JournalPage(first=first, runs=self._last, **self._about)
        self._next = page.end
        return page

    def overlapping(self, batches: Batches) -> tuple[JournalPage, int]:
        """The same page with the one before in front of it, and the number of keys that came before."""
        before, again = self._last, sum(run.keys for run in self._last)
        page = self.journal(batches)
        return JournalPage(first=page.first - again, runs=(*before, *page.runs), **self._about), again

    def snapshot(self, batches: Batches, number: int = 1) -> Iterator[SnapshotPage]:
        """A page for each batch, and an empty last one."""
        pages = [(_run(Kind.STORE, *rest),) for _, *rest in batches]
        for page, runs in enumerate([*pages, ()]):
            at: dict[str, Any] = {"snapshot": number, "begins_at": self._next, "page": page, "last": page == len(pages)}
            yield SnapshotPage(runs=runs, **at, **self._about)


class CoordinatorViewSuite(OfferSuite):
    """Set `offer`.  Every view is given pages of the types that it asks for."""

    kind: ClassVar[str] = "coordinator_view"

    @pytest.fixture
    def view(self, under_test: OpenableOffer) -> Iterator[CoordinatorView]:
        view = under_test.open()
        yield view
        view.close()

    def test_it_is_a_view(self, view: CoordinatorView) -> None:
        assert isinstance(view, CoordinatorView), f"{type(view).__name__} is not a CoordinatorView"
        assert isinstance(view.types, frozenset)
        assert all(isinstance(each, str) for each in view.types), f"types are texts: {view.types}"

    def test_its_routes_are_those_that_the_contract_allows(self, view: CoordinatorView) -> None:
        """The coordinator's own paths are checked when it starts."""
        routes = view.routes()
        faults = [fault for route in routes if (fault := fault_of_route(route))]
        assert not faults, faults[0]
        pairs = [(one, two) for i, one in enumerate(routes) for two in routes[:i] if one.method == two.method]
        assert [(one.path, two.path) for one, two in pairs if paths_overlap(one.path, two.path)] == []

    @FUZZ
    @given(steps=st.lists(st.tuples(st.sampled_from(MEMBERS), st.sampled_from(["journal", "again", "snapshot", "forget"]),
                                    st.sampled_from([L1, "shared"]), BATCHES), max_size=8))  # fmt: skip
    def test_whatever_members_send(self, under_test: OpenableOffer, steps: list[tuple[str, str, str, Batches]]) -> None:
        """Pages of several members in any order, deletes of keys that were never stored, members that leave without having
        come: `take` and `forget` raise nothing, and every GET is answered after them."""
        view = under_test.open()
        sources: dict[tuple[str, str, str], Source] = {}
        for content in _types(view):
            for member, what, name, batches in steps:
                source = sources.setdefault((member, name, content), Source(member, content, name))
                if what == "journal":
                    view.take(source.journal(batches), 0)
                elif what == "again":
                    view.take(*source.overlapping(batches))
                elif what == "snapshot":
                    for page in source.snapshot(batches):
                        view.take(page, 0)
                else:
                    view.forget(member)
        _answers(view)
        view.close()

    @FUZZ
    @given(first=BATCHES, second=BATCHES)
    def test_keys_that_are_skipped_have_no_effect(
        self, under_test: OpenableOffer, first: Batches, second: Batches
    ) -> None:
        """A member that sends again what was lost begins earlier than the coordinator needs."""
        once, overlapping = under_test.open(), under_test.open()
        for content in _types(once):
            source = Source(MEMBERS[0], content)
            for page in (source.journal(first), source.journal(second)):
                once.take(page, 0)
            source = Source(MEMBERS[0], content)
            overlapping.take(source.journal(first), 0)
            overlapping.take(*source.overlapping(second))
        assert _answers(overlapping) == _answers(once), "keys before `skip` were counted again"

    @FUZZ
    @given(batches=BATCHES)
    def test_what_comes_again_after_forget_counts_once(self, under_test: OpenableOffer, batches: Batches) -> None:
        """A member that is dropped and comes back sends everything from the first page on."""
        once, twice = under_test.open(), under_test.open()
        for content in _types(once):
            pages = [Source(each, content).journal(batches) for each in MEMBERS[:2]]
            for page in pages:
                once.take(page, 0)
                twice.take(page, 0)
        twice.forget(MEMBERS[0])
        for content in _types(once):
            twice.take(Source(MEMBERS[0], content).journal(batches), 0)
        assert _answers(twice) == _answers(once), "forget kept something of the instance"

    def test_openings_share_nothing(self, under_test: OpenableOffer) -> None:
        fresh = _answers(under_test.open())
        used = under_test.open()
        for content in _types(used):
            used.take(Source(MEMBERS[0], content).journal([(Kind.STORE, 0, 0, 5)]), 0)
        assert _answers(under_test.open()) == fresh

    def test_members_are_taken_at_once(self, view: CoordinatorView) -> None:
        """Pages of one member come one after the other, those of others meanwhile, and so do requests to its routes."""
        failed: list[BaseException] = []
        sent = threading.Event()

        def send(member: str) -> None:
            for number in range(300):
                for content in _types(view):
                    source = Source(f"{member}-{number % 7}", content, L1 if number % 2 else "shared")
                    view.take(source.journal([(Kind.STORE, 0, number, 40), (Kind.DELETE, 1, number, 40)]), 0)
                view.forget(f"{member}-{number % 5}")

        def ask() -> None:
            while not sent.is_set():
                _answers(view)

        def run(work: Any, *arguments: str) -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - shown by the thread of the test
                failed.append(error)

        asking = [threading.Thread(target=run, args=(ask,)) for _ in range(2)]
        sending = [threading.Thread(target=run, args=(send, member)) for member in MEMBERS]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # so that every thread runs between any two steps of another one
        try:
            for thread in (*asking, *sending):
                thread.start()
            for thread in sending:
                thread.join()
            sent.set()
            for thread in asking:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert not failed, f"on a thread: {failed[0]!r}"

    def test_memory_does_not_grow_with_members_that_leave(self, view: CoordinatorView) -> None:
        """Each with other keys; a fleet is scaled up and down for months."""
        sizes = []
        tracemalloc.start()
        try:
            for number in range(2 * ROUNDS):
                for content in _types(view):
                    source = Source(f"pod-{number}", content, incarnation=str(number))
                    view.take(source.journal([(Kind.STORE, 0, number * 600, 600)]), 0)
                view.forget(f"pod-{number}")
                if number in (ROUNDS - 1, 2 * ROUNDS - 1):
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        grown = sizes[1] - sizes[0]
        assert grown < ROUNDS * ROUND_BYTES_MAX, f"{grown} bytes more after {ROUNDS} members came and left"


def _run(kind: Kind, space: int, first: int, count: int) -> Run:
    return Run(kind, space, 4096, b"".join(object_key(first + i).chunk_hash for i in range(count)))


def _types(view: CoordinatorView) -> list[str]:
    return sorted(view.types)


def _answers(view: CoordinatorView) -> dict[str, Any]:
    """By path, of each GET; times and floats are left out."""
    return {route.path: _answer(route) for route in view.routes() if route.method == "GET"}


def _answer(route: HttpRoute) -> Any:
    path = dict.fromkeys(re.findall(r"{(\w+)}", route.path), MEMBERS[0])
    try:
        answer = route.answer(HttpRequest(path, {}, {"host": "localhost"}, b""))
    except HttpRefusal as refusal:
        if refusal.status not in route.refusals:
            pytest.fail(f"GET {route.path} refuses with {refusal.status}, which it does not declare")
        return refusal.status, str(refusal)
    assert isinstance(answer, HttpAnswer), f"GET {route.path} gives {type(answer).__name__}"
    assert fault_of_answer(answer) is None, f"GET {route.path}"
    data = encoded(answer.body)
    try:
        return answer.status, timeless(json.loads(data))
    except ValueError:
        return answer.status, data
