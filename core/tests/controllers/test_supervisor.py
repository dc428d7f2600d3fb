"""A thread that fails is seen, and comes back."""

from __future__ import annotations

import threading

import pytest

from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.controllers.supervisor import Supervisor


def test_a_failed_thread_is_red_while_it_is_down_and_green_again(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    started, fail, end = threading.Semaphore(0), threading.Event(), threading.Event()
    reds: list[list[Condition]] = []

    def worker() -> None:
        started.release()
        if not fail.is_set():
            fail.set()
            raise RuntimeError("tripped")
        end.wait(10)

    supervisor.start("worker", worker)
    assert started.acquire(timeout=5)
    while not list(supervisor.conditions()) and not started.acquire(blocking=False):
        pass
    reds.append(list(supervisor.conditions()))
    assert started.acquire(timeout=5) or reds
    end.set()
    assert supervisor.join(5) == []
    assert supervisor.status()["worker"] == {"running": False, "restarts": 1, "last_error": "RuntimeError: tripped"}
    assert "thread failed name=worker" in caplog.text


def test_a_condition_names_who_is_down_and_why() -> None:
    supervisor = Supervisor()
    failed = threading.Event()

    def worker() -> None:
        failed.set()
        raise OSError("disk on fire")

    supervisor.start("store", worker)
    failed.wait(5)
    seen = set[tuple[Severity, str]]()
    for _ in range(2000):
        seen.update((each.severity, each.sentence) for each in supervisor.conditions())
        threading.Event().wait(0.0005)
    assert (Severity.CRITICAL, "thread store: it is down: OSError: disk on fire") in seen
    assert supervisor.join(10) == []


def test_a_thread_that_ends_is_not_started_again() -> None:
    supervisor = Supervisor()
    runs: list[None] = []
    supervisor.start("once", lambda: runs.append(None))
    assert supervisor.join(5) == []
    assert len(runs) == 1


def test_who_does_not_end_is_named() -> None:
    supervisor = Supervisor()
    end = threading.Event()
    supervisor.start("stuck", lambda: end.wait(30) and None)  # type: ignore[arg-type]
    assert supervisor.join(0.05) == ["stuck"]
    end.set()


def test_one_that_has_done_its_work_is_neither_running_nor_down() -> None:
    supervisor = Supervisor()
    supervisor.start("short", lambda: None)
    assert supervisor.join(5) == []
    assert supervisor.status()["short"] == {"running": False, "restarts": 0, "last_error": ""}
    assert not list(supervisor.conditions())


def test_one_that_is_dismissed_is_not_known_any_more_and_its_name_is_free() -> None:
    supervisor, end = Supervisor(), threading.Event()
    supervisor.start("client", lambda: end.wait(30) and None)  # type: ignore[arg-type]
    assert not supervisor.dismiss("client", 0.02), "it has not ended yet"
    assert supervisor.status() == {}
    end.set()
    supervisor.start("client", lambda: None)
    assert supervisor.dismiss("client", 5)
    assert supervisor.dismiss("client", 5), "no thread has that name"
    assert supervisor.join(5) == []


def test_one_that_fails_after_it_was_dismissed_is_not_started_again() -> None:
    supervisor, fail = Supervisor(), threading.Event()
    runs: list[None] = []

    def worker() -> None:
        runs.append(None)
        fail.wait(30)
        raise RuntimeError("tripped")

    supervisor.start("client", worker)
    thread = supervisor.threads["client"].thread
    assert thread is not None
    supervisor.dismiss("client", 0.0)
    fail.set()
    thread.join(5)
    assert not thread.is_alive()
    assert (len(runs), list(supervisor.conditions())) == (1, [])


def test_a_thread_can_dismiss_itself() -> None:
    supervisor, done = Supervisor(), threading.Event()

    def worker() -> None:
        assert not supervisor.dismiss("client", 5), "it is still running, and does not wait for itself"
        done.set()

    supervisor.start("client", worker)
    assert done.wait(5)
    assert (supervisor.status(), list(supervisor.conditions())) == ({}, [])


def test_an_error_that_cannot_be_shown_ends_no_thread() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    supervisor, again, starts = Supervisor(), threading.Event(), list[None]()

    def worker() -> None:
        starts.append(None)
        if len(starts) == 1:
            raise MuteError
        again.set()

    supervisor.start("worker", worker)
    assert again.wait(5)
    assert supervisor.join(5) == []
    assert {name: thread.restarts for name, thread in supervisor.threads.items()} == {"worker": 1}
