"""What every thread is doing: names and places, never values."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_http.thread_list import thread_list


@pytest.fixture
def waiting() -> Iterator[threading.Thread]:
    leave, entered = threading.Event(), threading.Event()

    def wait_here(password: str) -> None:
        entered.set()
        assert leave.wait(30), password

    thread = threading.Thread(target=wait_here, args=("value-of-a-variable",), name="router")
    thread.start()
    assert entered.wait(10)
    yield thread
    leave.set()
    thread.join()


def test_a_thread_is_shown_with_where_it_is(waiting: threading.Thread) -> None:
    rows = thread_list({"router": {"running": True, "restarts": 0, "last_error": ""}})
    (row,) = [row for row in rows if row.native_id == waiting.native_id]
    assert (row.name, row.daemon, row.python) == ("router", False, True)
    assert row.supervised == {"running": True, "restarts": 0, "last_error": ""}
    assert any("wait_here" in call and __name__ in call for call in row.stack)
    assert "value-of-a-variable" not in repr(rows)
    assert row.state in ("S", "R")
    assert row.cpu_seconds is not None
    (main,) = [row for row in rows if row.name == "MainThread"]
    assert main.supervised is None
    assert "test_a_thread_is_shown_with_where_it_is" in main.stack[-2]


def test_the_busiest_comes_first_and_threads_of_libraries_are_there(tmp_path: Path) -> None:
    for number, name, used in ((1, "zmq (io) 0", 300), (2, "worker", 700)):
        folder = tmp_path / str(number)
        folder.mkdir()
        fields = ["R", *("0" for _ in range(10)), str(used), "100", "0"]
        (folder / "stat").write_text(f"{number} ({name}) {' '.join(fields)}\n")
    (tmp_path / "3").mkdir()  # it has just ended
    rows = [row for row in thread_list({}, tmp_path) if not row.python]
    assert [(row.name, row.native_id, row.state) for row in rows] == [("worker", 2, "R"), ("zmq (io) 0", 1, "R")]
    assert rows[0].cpu_seconds == 2 * (rows[1].cpu_seconds or 0)


def test_a_kernel_that_says_nothing_leaves_these_fields_empty(tmp_path: Path) -> None:
    rows = thread_list({}, tmp_path / "absent")
    assert rows
    assert all(row.state is None and row.cpu_seconds is None for row in rows)
