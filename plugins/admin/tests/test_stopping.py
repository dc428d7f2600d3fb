"""The end of the admin API while a request is still being answered."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from lmcache_admin.service import AdminService
from lmcache_http.server import STOP_SECONDS
from plugins.admin.tests.conversation import Answer, ask, wait_until_open
from plugins.admin.tests.stand_ins import parts

HANGS = """
import threading, time
from plugins.admin.tests.conversation import ask, wait_until_open
from plugins.admin.tests.stand_ins import parts
from lmcache_admin.service import AdminService

entered = threading.Event()

def hang():
    entered.set()
    time.sleep(1000)

server = AdminService("127.0.0.1", 0, None, parts(status=hang), ())
server.http.start()
wait_until_open(server)
threading.Thread(target=ask, args=(server, "/status"), daemon=True).start()
assert entered.wait(10)
server.close()
"""


def test_a_request_that_is_not_answered_in_time_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entered, leave_it = threading.Event(), threading.Event()
    answers: list[Answer] = []

    def hang() -> dict[str, Any]:
        entered.set()
        leave_it.wait(30)
        return {}

    server = AdminService("127.0.0.1", 0, None, parts(status=hang), ())
    server.http.start()
    wait_until_open(server)
    asking = threading.Thread(target=lambda: answers.append(ask(server, "/status")))
    asking.start()
    assert entered.wait(10)
    started = time.monotonic()
    server.close()
    assert time.monotonic() - started < STOP_SECONDS + 2
    leave_it.set()
    asking.join(10)
    assert (answers[0].code, answers[0].body["detail"]) == (503, "the server ends")
    assert "Traceback" not in caplog.text


def test_a_process_ends_whatever_hangs() -> None:
    """An adapter that is added can hang for ever while it is opened."""
    done = subprocess.run([sys.executable, "-c", HANGS], timeout=40, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
