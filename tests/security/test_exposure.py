"""Who can reach what: addresses, names in paths, and what is written into logs and headers."""

from __future__ import annotations

import http.client
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_core.testing import free_ports
from lmcache_core.testing.fake_engine import FakeEngine


def outcome(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    port, http_port = free_ports(2)
    command = [str(LMCACHE), "server", "--port", str(port), "--http-port", str(http_port), "--l1-size-gb", "0.01"]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=quiet_environment() | environment,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "cache.example"])
def test_where_others_can_reach_it_it_does_not_start_without_a_token(host: str) -> None:
    done = outcome("--http-host", host)
    assert done.returncode == 2
    assert f"--http-host {host} can be reached from other machines: give --http-token-file" in done.stderr


def test_a_token_of_the_environment_will_do(tmp_path: Path) -> None:
    """It comes as far as looking for the host then."""
    done = outcome("--http-host", "no-such-host.invalid", LMCACHE_HTTP_TOKEN="word-of-the-environment")
    assert "the host is not known here" in done.stderr
    assert "word-of-the-environment" not in done.stderr
    assert "LMCACHE_HTTP_TOKEN is set" not in done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("exposure")
    options = (
        *("--l1-size-gb", "0.0625", "--chunk-size", "16", "--eviction-policy", "IsolatedLRU"),
        *("--l2-adapter", f'{{"type": "fs", "base_path": "{folder / "l2"}"}}', "--log-level", "DEBUG"),
    )
    with ServerProcess(options, folder / "server.log") as server:
        server.status()
        yield server


def ask(server: ServerProcess, target: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes, str]:
    """The target as it is, without anybody making it decent."""
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    try:
        connection.putrequest(method, target)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read(), str(answer.headers)
    finally:
        connection.close()


@pytest.mark.parametrize(
    "target",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/quota/..%2f..%2fstatus",
        "/quota/%2e%2e%2fstatus",
        "/quota//status",
        "//status",
        "/%2fstatus",
        "/quota%2fa",
        "/status%2F",
        "/status/../config",
        "/.%00/status",
        "http://evil.example/status",
        "/l2/adapters/..%2f..%2fstatus",
        "/quota/%c0%ae%c0%ae",
        "/quota/%u002e",
        "/quota/%",
        "/%2fetc%2fpasswd",
    ],
)
def test_no_path_leads_anywhere_else(server: ServerProcess, target: str) -> None:
    code, body, _ = ask(server, target)
    assert code in (404, 421, 422, 200)
    assert b"root:" not in body
    if code == 200:  # a strange name of a salt is still only a name of a salt
        assert target.startswith("/quota/")
        assert b'"cache_salt"' in body


INJECTIONS = (
    "a%0d%0aSet-Cookie:%20x=1",
    "a%0aX-Injected:%201",
    "a%0d%0a2026-01-01%20ERROR%20forged:%20line",
    "%1b[2Ja",
)


@pytest.mark.parametrize("salt", INJECTIONS)
def test_names_break_neither_headers_nor_the_log(server: ServerProcess, salt: str) -> None:
    for method, body in (("PUT", b'{"limit_gb": 1}'), ("GET", None), ("DELETE", None)):
        code, _, headers = ask(server, f"/quota/{salt}", method, body)
        assert code in (200, 404, 422)
        assert "X-Injected" not in headers
        assert "Set-Cookie" not in headers
    assert ask(server, f"/nowhere/{salt}")[0] == 404
    lines = server.log.splitlines()
    assert [line for line in lines if line.startswith(("X-Injected", "Set-Cookie", "2026-01-01 ERROR forged"))] == []
    assert "\x1b" not in server.log


def test_salts_of_engines_break_no_log_either(server: ServerProcess) -> None:
    with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
        engine.store(list(range(64)), request="r\n2026-01-01 ERROR forged: line")
    assert [line for line in server.log.splitlines() if line.startswith("2026-01-01 ERROR forged")] == []


def test_a_large_body_is_refused_before_it_is_read(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
    try:
        connection.putrequest("PUT", "/quota/a")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders(b"{")
        answer = connection.getresponse()
        assert answer.status == 413
        assert answer.getheader("Content-Type") == "application/problem+json"
    finally:
        connection.close()


def test_nothing_was_made_outside_of_the_folders(server: ServerProcess) -> None:
    assert not os.path.exists("/etc/lmcache")
    assert server.running
    with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
        assert engine.store(list(range(64, 128)))
