"""The admin API over a real socket."""

from __future__ import annotations

import logging
import signal
import socket
from typing import Any

import pytest

import lmcache_core
from lmcache_admin.service import AdminService
from lmcache_client.errors import ResourceError
from lmcache_core import Severity
from plugins.admin.tests.conversation import ask, running
from plugins.admin.tests.stand_ins import active, parts


def test_what_it_answers() -> None:
    with running() as server:
        assert ask(server, "/").body == {"status": "ok", "service": "lmcache", "version": lmcache_core.__version__}
        assert ask(server, "/healthcheck")[:3] == (200, "application/json", {"status": "healthy"})
        assert ask(server, "/status").body == {"l1": {"free": 3}}


def test_an_unhealthy_server_says_why() -> None:
    with running(conditions=lambda: active(Severity.CRITICAL, "it is down", "thread store")) as server:
        assert ask(server, "/healthcheck")[:3] == (
            503,
            "application/json",
            {"status": "unhealthy", "reason": "thread store: it is down"},
        )


def test_a_degraded_server_serves_and_says_why() -> None:
    with running(conditions=lambda: active(Severity.WARNING, "it is full", "adapter fs")) as server:
        assert ask(server, "/healthcheck")[:3] == (
            200,
            "application/json",
            {"status": "degraded", "reason": "adapter fs: it is full"},
        )
    with running(conditions=lambda: active(Severity.INFO, "3 were refused")) as server:
        assert ask(server, "/healthcheck")[:3] == (200, "application/json", {"status": "healthy"})


def test_errors_are_problems() -> None:
    with running() as server:
        missing = ask(server, "/nowhere")
        assert (missing.code, missing.kind) == (404, "application/problem+json")
        assert missing.body == {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "Not Found"}
        assert ask(server, "/status", "DELETE")[:2] == (405, "application/problem+json")


def test_an_internal_error_is_logged_and_not_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> dict[str, Any]:
        raise RuntimeError("the secret path is /x")

    with running(status=failing) as server, caplog.at_level(logging.ERROR):
        answer = ask(server, "/status")
    assert (answer.code, answer.kind) == (500, "application/problem+json")
    assert "secret" not in str(answer)
    assert "the secret path is /x" in caplog.text


def test_with_a_token_no_request_is_answered_without_it() -> None:
    with running("right-word") as server:
        for method, path, body in (
            ("GET", "/", None),
            ("GET", "/config", None),
            ("GET", "/openapi.json", None),
            ("PUT", "/loglevel", {"logger": "lmcache_core", "level": None}),
            ("GET", "/status", None),
            ("GET", "/quota", None),
            ("PUT", "/quota/a", {"limit_gb": 1}),
            ("GET", "/quota/a", None),
            ("DELETE", "/quota/a", None),
            ("POST", "/cache/clear", None),
            ("POST", "/clear-cache", None),
        ):
            refused = ask(server, path, method, body)
            assert (refused.code, refused.kind) == (401, "application/problem+json")
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ask(server, path, method, body, Authorization="Bearer wrong-word").code == 401
            assert ask(server, path, method, body, Authorization="Bearer right-word").code == 200


def test_a_taken_port_is_known_before_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"--http-port {port}: cannot be bound: Address already in use"):
            AdminService("127.0.0.1", port, None, parts())
    with pytest.raises(ResourceError, match="the host is not known here"):
        AdminService("no-such-host.invalid", 1, None, parts())


def test_no_request_is_answered_before_the_start() -> None:
    server = AdminService("127.0.0.1", 0, None, parts())
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", int(server.http.endpoint.rpartition(":")[2])))
    server.close()


def test_a_stop_gives_the_port_back_and_may_be_repeated() -> None:
    with running() as server:
        host, _, port = server.http.endpoint.removeprefix("http://").partition(":")
    server.close()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, int(port)))


def test_a_stop_right_after_the_start_leaves_no_thread() -> None:
    server = AdminService("127.0.0.1", 0, None, parts())
    server.http.start()
    server.close()
    assert server.http._thread is not None
    assert not server.http._thread.is_alive()


def test_signals_stay_the_servers() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with running() as server:
        ask(server, "/")
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
