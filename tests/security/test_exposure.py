"""Who can reach what: addresses, names in paths, and what is written into logs and headers."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_devkit import free_ports
from lmcache_devkit.fake_engine import FakeEngine


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


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


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


def test_a_token_to_read_reads_and_does_nothing_else(tmp_path: Path) -> None:
    """Every route of a whole server that is not a GET, by its own description."""
    tokens = tmp_path / "tokens"
    tokens.write_text("strong\nweak read\n")
    tokens.chmod(0o600)
    adapters = ("--l2-adapter", '{"type": "memory"}', "--http-token-file", str(tokens))
    with ServerProcess(("--l1-size-gb", "0.0625", *adapters), tmp_path / "server.log") as server:
        assert server.answers_ping(5)

        def asked(method: str, path: str, token: str) -> tuple[int, Any]:
            connection = http.client.HTTPConnection(HOST, server.http_port, timeout=10)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if method == "GET" else b"{}", headers)
            answer = connection.getresponse()
            given = json.loads(answer.read())
            connection.close()
            return answer.status, given

        assert until(lambda: reachable(server.http_port))
        code, document = asked("GET", "/openapi.json", "weak")
        assert code == 200
        before = asked("GET", "/config", "weak")
        changes = [
            (method.upper(), re.sub("{.*?}", "0", path))
            for path, methods in document["paths"].items()
            for method in methods
            if method in ("post", "put", "patch", "delete")
        ]
        assert len(changes) > 15
        for method, path in changes:
            assert asked(method, path, "weak")[0] == 403, (method, path)
            assert asked(method, path, "wrong")[0] == 401, (method, path)
        assert asked("GET", "/config", "weak") == before


FORGED = "\r\n2026-01-01 ERROR forged: line\x1b[2J\u2028\x85"


@pytest.mark.parametrize("style", ["text", "json"])
def test_names_of_engines_break_no_log_either(tmp_path: Path, style: str) -> None:
    """A model's name is logged with its registration, a salt where L1 is full."""
    options = ("--l1-size-gb", "0.001", "--chunk-size", "16", "--log-style", style)
    with ServerProcess(options, tmp_path / "server.log") as server:
        endpoint = f"tcp://{HOST}:{server.port}"
        with FakeEngine(endpoint, model=f"model{FORGED}", salt=f"salt{FORGED}", hidden=1024) as engine:
            for number in range(8):
                tokens = [number, *range(63)]
                engine.worker.prepare_store(engine.key(tokens, f"r{number}{FORGED}", 0, 64), engine.instance_id)
        assert server.logs("worker registered")
        assert server.logs("L1 had no room", 15)
    written = (tmp_path / "server.log").read_bytes().decode()
    started = [line for line in written.splitlines() if "forged" in line]
    assert any("model" in line for line in started)
    assert any("salt" in line for line in started)
    assert [line for line in started if line.startswith("2026-01-01 ERROR")] == []
    assert "\x1b" not in written


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


@pytest.mark.parametrize("kind", ["fs", "fs_native"])
def test_no_name_leads_out_of_a_directory_of_objects(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("as it was")
    base = tmp_path / "l2" / "base"
    spec = {"type": kind, "base_path": str(base)}
    options = ("--l1-size-gb", "0.0625", "--chunk-size", "16", "--l2-adapter", json.dumps(spec))
    names = (
        "../../outside/x",
        f"{outside}/x",
        "..",
        ".",
        "a/../../../outside",
        "~",
        "%2e%2e/x",
        "a\\..\\b",
        "-rf",
        "x" * 600,
    )
    salts = ("..", ".", "~", "-rf", "%2e%2e")
    spaces = [(name, "") for name in names] + [("model", salt) for salt in salts]
    with ServerProcess(options, tmp_path / "server.log") as server:
        for model, salt in spaces:
            with FakeEngine(f"tcp://{HOST}:{server.port}", model=model, salt=salt) as engine:
                assert engine.store(list(range(64)), request=model)
        server.wait_written(30)
        assert len(list(base.rglob("*.kv"))) == 4 * len(spaces)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["l2", "outside", "server.log"]
        assert [path.name for path in (tmp_path / "l2").iterdir()] == ["base"]
        assert [path.name for path in outside.iterdir()] == ["kept"]
        for salt in ("../x", "a\\b", "a@b", "a\0b"):
            with FakeEngine(f"tcp://{HOST}:{server.port}", salt=salt) as engine:
                engine.store(list(range(64)))
                assert engine.lookup(list(range(64))) == 0, "such a salt is refused"
