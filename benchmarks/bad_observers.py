"""A plugin with subscribers that no server should have, for benchmarks.observers: one hangs, one raises, one keeps what it is
given, one computes without end.  And five that do nothing, to see what subscribers cost at least."""

from __future__ import annotations

import threading
import time
from typing import Final

from lmcache_core import (
    Event,
    LookupFinished,
    LookupStarted,
    Offer,
    RequestAnswered,
    RequestEnded,
    Subscriber,
    Subscriptions,
    hookimpl,
)

EACH_REQUEST: Final = (LookupStarted, LookupFinished, RequestEnded, RequestAnswered)
BURN_SECONDS: Final = 0.002
GOOD: Final = tuple(f"idle-{number}" for number in range(5))
FAULTY: Final = ("hangs", "raises", "keeps")
BURNING: Final = ("burns",)


class Idle(Subscriber):
    def subscriptions(self) -> Subscriptions:
        return dict.fromkeys(EACH_REQUEST, self.hear)

    def hear(self, event: Event) -> None:
        """Nothing."""


class Hangs(Idle):
    def hear(self, event: Event) -> None:
        threading.Event().wait()


class Raises(Idle):
    def hear(self, event: Event) -> None:
        raise ValueError("a bug")


class Keeps(Idle):
    def __init__(self) -> None:
        self.kept: list[Event] = []

    def hear(self, event: Event) -> None:
        self.kept.append(event)


class Burns(Idle):
    def hear(self, event: Event) -> None:
        end = time.thread_time() + BURN_SECONDS
        while time.thread_time() < end:
            pass


def open_idle(settings: None) -> Subscriber:
    return Idle()


def open_hangs(settings: None) -> Subscriber:
    return Hangs()


def open_raises(settings: None) -> Subscriber:
    return Raises()


def open_keeps(settings: None) -> Subscriber:
    return Keeps()


def open_burns(settings: None) -> Subscriber:
    return Burns()


@hookimpl
def lmcache_subscribers() -> list[Offer]:
    """None is active unless --offer-settings names it."""
    idle = [Offer(name=name, summary="does nothing", open="benchmarks.bad_observers:open_idle") for name in GOOD]
    bad = [Offer(name=name, summary=name, open=f"benchmarks.bad_observers:open_{name}") for name in FAULTY + BURNING]
    return idle + bad
