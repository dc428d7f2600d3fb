"""A thread that fails is seen, and comes back."""

from __future__ import annotations

import threading

import pytest

from lmcache_core.controllers.supervisor import Supervisor


def test_a_failed_charge_is_red_while_it_is_down_and_green_again(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    begun, fail, end = threading.Semaphore(0), threading.Event(), threading.Event()
    reds: list[tuple[bool, str]] = []

    def charge() -> None:
        begun.release()
        if not fail.is_set():
            fail.set()
            raise RuntimeError("tripped")
        end.wait(10)

    supervisor.start("charge", charge)
    assert begun.acquire(timeout=5)
    while supervisor.health()[0] and not begun.acquire(blocking=False):
        pass
    reds.append(supervisor.health())
    assert begun.acquire(timeout=5) or reds
    end.set()
    assert supervisor.join(5) == []
    assert supervisor.status()["charge"] == {"running": False, "restarts": 1, "last_error": "RuntimeError: tripped"}
    assert "thread failed name=charge" in caplog.text


def test_health_names_who_is_down_and_why() -> None:
    supervisor = Supervisor()
    failed = threading.Event()

    def charge() -> None:
        failed.set()
        raise OSError("disk on fire")

    supervisor.start("store", charge)
    failed.wait(5)
    seen = set()
    for _ in range(2000):
        seen.add(supervisor.health())
        threading.Event().wait(0.0005)
    assert (False, "store is down: OSError: disk on fire") in seen
    supervisor.stopping()
    assert supervisor.join(10) == []


def test_a_charge_that_ends_is_not_started_again() -> None:
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
    assert supervisor.health() == (True, "")
