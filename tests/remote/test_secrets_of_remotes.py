"""Keys and passwords of network backends are planted, everything goes wrong that can, and nothing that a server says has one.

Settings come from the environment or from a file.  What a user types on the command line is in the process list, as
are every program's arguments."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

import pytest

from demo.child_process import ChildError
from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE, ServerProcess
from tests.remote.backends import OPERATION_SECONDS
from tests.remote.redis_servers import redis_server
from tests.remote.s3_servers import moto_server
from tests.remote.site import TIMES, RemoteSite
from tests.remote.tcp_proxy import CutAfter, Flip, Nothing, Refuse, TcpProxy, Way

ANSWERS: Final = frozenset({Way.ANSWERS})
SMALL: Final = ("--l1-size-gb", "0.0625", "--chunk-size", "16", "--eviction-policy", "LRU", "--log-level", "DEBUG")

ACCESS_KEY: Final = "AKIAPLANTED00KEY0001"
SECRET_KEY: Final = "planted/secret+key/7Gh2kQ9vXw1="
SESSION_TOKEN: Final = "planted//session+token/Zx81LmQe0pRt=="
PASSWORD: Final = "planted password&with=signs/4f7e"
IN_URL: Final = "planted-url-password-11c9"
PLANTED: Final = (SECRET_KEY, SESSION_TOKEN, PASSWORD, IN_URL)


def secrets_in(text: str) -> list[str]:
    """Secrets in it, in any spelling."""
    return [secret for secret in PLANTED if any(spelling in text for spelling in spellings(secret))]


def spellings(secret: str) -> set[str]:
    encoded = base64.b64encode(secret.encode()).decode()
    return {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], encoded}


@contextmanager
def s3_with_secrets(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Moto takes any credentials."""
    with moto_server(folder) as server:
        secret = {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_session_token": SESSION_TOKEN,
        }
        settings = {"type": "s3", **server.settings(), "operation_timeout_seconds": OPERATION_SECONDS, **secret}
        yield int(server.host.rpartition(":")[2]), settings


@contextmanager
def redis_with_secrets(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with redis_server(folder, "--requirepass", PASSWORD, password=PASSWORD) as server:
        yield server.port, {"type": "redis", "host": HOST, "port": server.port, "password": PASSWORD}


@contextmanager
def redis_with_url(folder: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with redis_server(folder, "--requirepass", IN_URL, password=IN_URL) as server:
        yield server.port, {"type": "redis", "url": f"redis://default:{IN_URL}@{HOST}:{server.port}/0"}


BACKENDS: Final = {"s3": s3_with_secrets, "redis": redis_with_secrets, "redis-url": redis_with_url}


def through(settings: Mapping[str, Any], backend_port: int, port: int) -> dict[str, Any]:
    """The same settings to another port."""
    found: dict[str, Any] = json.loads(json.dumps(settings).replace(str(backend_port), str(port)))
    return found


@pytest.fixture(
    params=[
        ("s3", "environment"),
        pytest.param(("redis", "file"), marks=pytest.mark.slow),
        pytest.param(("redis-url", "environment"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[TcpProxy, ServerProcess]]:
    """A server whose adapter's settings come from the place that is named, not started yet."""
    name, place = request.param
    with BACKENDS[name](tmp_path) as (backend_port, settings), TcpProxy(backend_port) as proxy:
        adapter = json.dumps(through(settings, backend_port, proxy.port))
        flags = [*SMALL, *TIMES]
        environment = {}
        if place == "environment":
            environment["LMCACHE_L2_ADAPTER"] = adapter
        else:
            file = tmp_path / "lmcache.toml"
            file.write_text(f"l2_adapter = ['''{adapter}''']\n")
            file.chmod(0o600)
            flags += ["--config", str(file)]
        yield proxy, ServerProcess(flags, tmp_path / "server.log", environment=environment)


def test_nothing_says_one(given: tuple[TcpProxy, ServerProcess]) -> None:
    proxy, server = given
    with server:
        site = RemoteSite(server)
        before = site.fresh(2)
        site.in_l2(*before)
        assert site.all_hits(*before)
        for fault in (CutAfter(ANSWERS, passed_bytes=10), Flip(ANSWERS, every_bytes=20), Refuse()):
            site.forget_l1()
            proxy.switch(fault)
            for number in before:
                site.hits(number)
            site.store(*site.fresh(2))
            site.settle()
            assert secrets_in(ask(server, "/status")[1]) == []
        site.wait_circuit("open", "half_open")
        assert_no_secret_in(server)
        proxy.switch(Nothing())
        site.comes_back()
        site.close()
        for secret in PLANTED:
            status, body = ask(server, "/l2/adapters", "POST", {"type": "s3", "aws_secret_access_key": [secret]})
            assert status == 422
            assert secrets_in(body) == []
    assert secrets_in(server.log) == []


def test_a_start_that_fails_says_none(given: tuple[TcpProxy, ServerProcess]) -> None:
    """What answers makes no sense."""
    proxy, server = given
    proxy.switch(Flip(ANSWERS, every_bytes=3))
    with pytest.raises(ChildError):
        server.start()
    assert secrets_in(server.log) == []
    reason = server.log.splitlines()[-1]
    assert reason.startswith("lmcache: ")
    assert f"{HOST}:{proxy.port}" in reason, "it does not say which backend it is about"


def test_a_wrong_password_is_not_repeated(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "another one", password="another one") as backend:
        adapter = json.dumps({"type": "redis", "host": HOST, "port": backend.port, "password": PASSWORD})
        server = ServerProcess(SMALL, tmp_path / "server.log", environment={"LMCACHE_L2_ADAPTER": adapter})
        with pytest.raises(ChildError):
            server.start()
        assert secrets_in(server.log) == []
        assert "password" in server.log.lower()


def assert_no_secret_in(server: ServerProcess) -> None:
    """The log, every page of the API, what the commands print, and what every process of this machine may read."""
    assert secrets_in(server.log) == []
    document = json.loads(ask(server, "/openapi.json")[1].partition("\n\n")[2])
    paths = [path for path, methods in document["paths"].items() if "get" in methods and "{" not in path]
    assert {"/config", "/status", "/config/adapters", "/metrics", "/threads"} <= set(paths)
    for path in paths:
        status, body = ask(server, path)
        assert status != 500, path
        assert secrets_in(body) == [], path
    for command in (("status",), ("status", "--json"), ("config", "get"), ("describe",)):
        assert secrets_in(printed(server, *command)) == [], command
    process = Path(f"/proc/{server.pid}")
    for file in (process / "cmdline", process / "comm", *process.glob("task/*/comm")):
        assert secrets_in(file.read_text(errors="replace").replace("\0", " ")) == [], file


def printed(server: ServerProcess, *command: str) -> str:
    done = subprocess.run(
        [str(LMCACHE), *command, "--url", f"http://{HOST}:{server.http_port}"],
        env=quiet_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout + done.stderr


def ask(server: ServerProcess, path: str, method: str = "GET", body: Any = None) -> tuple[int, str]:
    """Status, and headers and body as they came."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{HOST}:{server.http_port}{path}", data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, f"{answer.headers}\n\n{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return error.code, f"{error.headers}\n\n{error.read().decode()}"
