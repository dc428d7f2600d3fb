"""Views of a coordinator: a right one and mutants."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import Any, ClassVar

from lmcache_core import HttpAnswer, HttpRequest, HttpRoute
from lmcache_devkit.coordinator_view_suite import CoordinatorViewSuite
from lmcache_fleet.messages import Kind, Page
from lmcache_fleet.view import CoordinatorView
from plugins.devkit.tests.mutants.planted import Planted


class Right(CoordinatorView):
    """Keys that each server has stored, by model.  Each mutant below is wrong in one thing."""

    def __init__(self, settings: None) -> None:
        self.lock = Lock()
        self.stored: dict[str, Counter[str]] = {}

    def take(self, page: Page, skip: int) -> None:
        with self.lock:
            counts = self.stored.setdefault(page.instance, Counter())
            for run in page.runs:
                keys, skip = max(0, run.keys - skip), max(0, skip - run.keys)
                if run.kind is Kind.STORE:
                    counts[page.key_spaces[run.space].model_name] += keys

    def forget(self, instance: str) -> None:
        with self.lock:
            self.stored.pop(instance, None)

    def answer(self, request: HttpRequest) -> HttpAnswer:
        with self.lock:
            total: Counter[str] = Counter()
            for counts in self.stored.values():
                total.update(counts)
        return HttpAnswer(dict(total))

    def routes(self) -> Sequence[HttpRoute]:
        return [HttpRoute("GET", "/acme/stored", self.answer, "Keys that were stored, by model.")]


PLANTED = Planted("coordinator_views.py", Right)


@PLANTED.killed_by("it_is_a_view", "CoordinatorView")
class Unrelated:
    def __init__(self, settings: None) -> None: ...

    def close(self) -> None: ...


@PLANTED.killed_by("its_routes_are_those_that_the_contract_allows", "absolute")
class HasARelativePath(Right):
    def routes(self) -> Sequence[HttpRoute]:
        return [HttpRoute("GET", "acme", self.answer, "Keys.")]


@PLANTED.killed_by("whatever_members_send", "KeyError")
class ForgetsOnlyWhatItKnows(Right):
    def forget(self, instance: str) -> None:
        del self.stored[instance]


@PLANTED.killed_by("whatever_members_send", "fewer than none")
class CountsDeletesDown(Right):
    def take(self, page: Page, skip: int) -> None:
        super().take(page, skip)
        for run in page.runs:
            if run.kind is Kind.DELETE:
                self.stored[page.instance][page.key_spaces[run.space].model_name] -= run.keys

    def answer(self, request: HttpRequest) -> HttpAnswer:
        if any(count < 0 for counts in self.stored.values() for count in counts.values()):
            raise ValueError("fewer than none")
        return super().answer(request)


@PLANTED.killed_by("keys_that_are_skipped_have_no_effect", "counted again")
class SkipsNothing(Right):
    def take(self, page: Page, skip: int) -> None:
        super().take(page, 0)


@PLANTED.killed_by("what_comes_again_after_forget_counts_once", "forget kept something")
class ForgetsNothing(Right):
    def forget(self, instance: str) -> None: ...


@PLANTED.killed_by("openings_share_nothing")
class CountsInItsClass(Right):
    everywhere: ClassVar[dict[str, Counter[str]]] = {}

    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.stored = self.everywhere


class _Slow(dict[str, Counter[str]]):
    def values(self) -> Any:
        for each in super().values():
            time.sleep(0.0005)
            yield each


@PLANTED.killed_by("members_are_taken_at_once", "changed size")
class HasNoLock(Right):
    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.stored = _Slow()

    def answer(self, request: HttpRequest) -> HttpAnswer:
        return HttpAnswer({"models": len({model for counts in self.stored.values() for model in counts})})


@PLANTED.killed_by("memory_does_not_grow_with_members_that_leave", "bytes more")
class RemembersHashes(Right):
    def __init__(self, settings: None) -> None:
        super().__init__(settings)
        self.seen: set[bytes] = set()

    def take(self, page: Page, skip: int) -> None:
        super().take(page, skip)
        with self.lock:
            self.seen.update(each for run in page.runs for each in run.split())


globals().update(PLANTED.suites(CoordinatorViewSuite, __name__))
