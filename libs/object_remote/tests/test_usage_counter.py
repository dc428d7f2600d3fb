"""Usage is what is there, whatever happens while it is counted."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmcache_core import Usage
from lmcache_object_remote import Count, UsageCounter


def object_id(number: int) -> bytes:
    return number.to_bytes(16, "little")


@dataclass
class Request:
    changing: AbstractContextManager[None]
    size: int
    stores: bool
    done: bool = False


class UsageMachine(RuleBasedStateMachine):
    """A backend whose listing moves through the ids, while objects come and go on both sides of its position.  Requests
    have their effect at one time, and are answered later."""

    IDS = 6

    def __init__(self) -> None:
        super().__init__()
        self.usage_counter = UsageCounter()
        self.backend: dict[int, int] = {}
        self.counting: object | None = None
        self.count: Count | None = None
        self.at = 0
        self.known = False
        self.requests: dict[int, Request] = {}

    @rule(number=st.integers(0, IDS - 1), size=st.integers(1, 9), at_once=st.booleans())
    def ask(self, number: int, size: int, at_once: bool) -> None:
        """To store what is not there, and to delete what is."""
        if number not in self.requests:
            changing = self.usage_counter.changing(object_id(number))
            changing.__enter__()
            self.requests[number] = Request(changing, self.backend.get(number, size), stores=number not in self.backend)
            if at_once:
                self.take_effect(number)
                self.answer(number)

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, IDS - 1))
    def reach(self, which: int) -> None:
        self.take_effect(sorted(self.requests)[which % len(self.requests)])

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, IDS - 1))
    def return_one(self, which: int) -> None:
        self.answer(sorted(self.requests)[which % len(self.requests)])

    def take_effect(self, number: int) -> None:
        request = self.requests[number]
        if request.done:
            return
        request.done = True
        if request.stores:
            self.backend[number] = request.size
        else:
            del self.backend[number]

    def answer(self, number: int) -> None:
        request = self.requests.pop(number)
        if request.done:
            tell = self.usage_counter.stored if request.stores else self.usage_counter.deleted
            tell(object_id(number), request.size)
        request.changing.__exit__(None, None, None)

    @precondition(lambda self: self.counting is None)
    @rule()
    def begin(self) -> None:
        self.counting = self.usage_counter.counting()
        self.count = self.counting.__enter__()
        self.at = 0

    @precondition(lambda self: self.counting is not None)
    @rule(twice=st.booleans())
    def list_some(self, twice: bool) -> None:
        assert self.count is not None
        for number in range(self.at, min(self.at + 3, self.IDS)):
            if number in self.backend:
                for _ in range(1 + twice):
                    self.count.saw(object_id(number), self.backend[number])
        self.at += 3

    @precondition(lambda self: self.counting is not None and self.at >= self.IDS)
    @rule()
    def finish(self) -> None:
        assert self.count is not None
        self.count.finish()
        self.known = True
        self.leave()

    @precondition(lambda self: self.counting is not None)
    @rule()
    def leave(self) -> None:
        """Without `finish`: the backend failed in the middle of the listing."""
        assert self.counting is not None
        self.counting.__exit__(None, None, None)  # type: ignore[attr-defined]
        self.counting = self.count = None

    @precondition(lambda self: not any(request.done for request in self.requests.values()))
    @invariant()
    def usage_is_what_is_there(self) -> None:
        expected = Usage(sum(self.backend.values()), None, len(self.backend)) if self.known else None
        assert self.usage_counter.usage() == expected


TestUsage = UsageMachine.TestCase
TestUsage.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_one_counting_at_a_time() -> None:
    usage_counter = UsageCounter()
    with usage_counter.counting(), pytest.raises(RuntimeError), usage_counter.counting():
        pass


def test_what_others_did_is_seen_by_the_next_counting() -> None:
    usage_counter = UsageCounter()
    usage_counter.stored(object_id(1), 10)
    with usage_counter.counting() as count:
        count.saw(object_id(2), 5)
        count.finish()
    assert usage_counter.usage(100) == Usage(5, 100, 1)


def test_what_is_replaced_while_a_listing_ends_is_one_object() -> None:
    usage_counter = UsageCounter()
    with usage_counter.counting() as count, usage_counter.changing(object_id(1)):
        count.saw(object_id(1), 5)
        count.finish()
        usage_counter.deleted(object_id(1), 5)
        usage_counter.stored(object_id(1), 7)
    assert usage_counter.usage() == Usage(7, None, 1)
