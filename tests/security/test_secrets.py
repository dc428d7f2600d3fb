"""Recognisable secrets are planted in the configuration and looked for in everything that a server says."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.child_process import ChildError
from demo.server_process import HOST, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.security import vault

TOKEN = "token-secret-e1f0"
SPOKEN = "spoken-secret-2ab9"
PLANTED = (*vault.SECRETS, vault.QUOTED, json.dumps(vault.QUOTED)[1:-1], TOKEN, SPOKEN)
LATER = "not-yet-known-6d20"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("secrets")
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = (
        *("--plugin", vault.__name__, "--plugin", "observability"),
        *("--l1-size-gb", "0.0625", "--chunk-size", "16", "--log-level", "DEBUG"),
        *("--http-token-file", str(token), "--l2-adapter", json.dumps(vault.VALUES)),
    )
    environment = {"PYTHONPATH": str(ROOT), "LMCACHE_HTTP_TOKEN": SPOKEN}
    with ServerProcess(options, folder / "server.log", environment=environment) as server:
        yield server


def ask(server: ServerProcess, path: str, method: str = "GET", body: Any = None) -> tuple[int, str]:
    """Status, headers and body as they came."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {SPOKEN}"}
    request = urllib.request.Request(f"http://{HOST}:{server.http_port}{path}", data, headers, method=method)
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, f"{answer.headers}{answer.read().decode()}"
        except urllib.error.HTTPError as error:
            with error:
                return error.code, f"{error.headers}{error.read().decode()}"
        except urllib.error.URLError:  # the admin API comes up a moment after the engine port
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def secrets_in(text: str) -> list[str]:
    return [secret for secret in PLANTED if secret in text]


def test_no_answer_has_a_secret_in_it(server: ServerProcess) -> None:
    document = json.loads(ask(server, "/openapi.json")[1].partition("\n\n")[2])
    paths = [path for path, methods in document["paths"].items() if "get" in methods and "{" not in path]
    assert {"/config", "/status", "/plugins", "/threads", "/vault", "/config/adapters", "/metrics"} <= set(paths)
    for path in paths:
        code, text = ask(server, path)
        assert code != 500, path
        assert secrets_in(text) == [], path
    assert ask(server, "/vault")[1].count("**********") == len(vault.SECRETS) + 1, "a plugin showed everything"


def test_what_is_not_a_secret_is_shown(server: ServerProcess) -> None:
    text = ask(server, "/config")[1]
    assert "visible-region" in text
    assert "store.example/bucket" in text


def test_neither_faults_nor_the_log_have_one(server: ServerProcess) -> None:
    """The adapter raises with all of its secrets in the message, for stores and for lookups."""
    with FakeEngine(f"tcp://{HOST}:{server.port}") as engine:
        assert engine.store(list(range(64)))
        assert engine.lookup([7, *range(63)], request="other") == 0
    deadline = time.monotonic() + 10
    while "refused" not in server.log and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "refused **********" in server.log
    assert secrets_in(ask(server, "/status")[1]) == []
    assert secrets_in(server.log) == []


def test_what_comes_later_is_kept_as_well(server: ServerProcess) -> None:
    """An adapter that is added while the server runs, with secrets that no configuration had."""
    values = {**vault.VALUES, "phrase": "later-secret-aa12", "endpoint": "https://a:later-secret-bb34@h/x"}
    failed = ask(server, "/l2/adapters", "POST", {**values, "region": "nowhere"})
    assert failed[0] in (409, 422)
    assert "cannot be opened" in failed[1]
    added = ask(server, "/l2/adapters", "POST", values)
    assert added[0] in (200, 201)
    for text in (failed[1], added[1], ask(server, "/config/adapters")[1], ask(server, "/status")[1], server.log):
        assert "later-secret" not in text
        assert secrets_in(text) == []


def test_a_start_that_fails_does_not_tell_them(tmp_path: Path) -> None:
    """What its last line on standard error quotes is a client library's message."""
    options = ("--plugin", vault.__name__, "--l1-size-gb", "0.01", "--log-level", "DEBUG")
    values = json.dumps({**vault.VALUES, "region": "nowhere"})
    server = ServerProcess(
        (*options, "--l2-adapter", values), tmp_path / "server.log", environment={"PYTHONPATH": str(ROOT)}
    )
    with pytest.raises(ChildError):
        server.start()
    assert "lmcache: L2 adapter 'vault' (module tests.security.vault) cannot be opened" in server.log
    assert secrets_in(server.log) == []


def test_mistakes_are_not_answered_with_secrets(server: ServerProcess) -> None:
    for wrong in (
        {"phrase": [vault.TYPED], "unknown": 1},
        {"region": {"api_key": LATER}},
        {"extra": f"api_key={LATER}"},
    ):
        code, text = ask(server, "/l2/adapters", "POST", {**vault.VALUES, **wrong})
        assert code == 422
        assert secrets_in(text) == []
        assert LATER not in text
