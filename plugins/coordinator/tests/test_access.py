"""Who may do what: scopes of tokens, TLS with certificates of clients, and names in them."""

from __future__ import annotations

import json
import resource
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar

from demo.server_process import FORKED
from lmcache_client.errors import ConfigError
from lmcache_coordinator.settings import read_settings, view_settings
from lmcache_fleet.messages import JournalPage, KeysOf, Lookup, encode
from lmcache_http.server import HttpServer, TlsFiles
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.coordinator.tests.test_routes import SPACE

TOKENS = {"reader": "read", "server": "member", "operator": "full", "old": ""}
PAGE = encode(JournalPage(instance="x", incarnation="1", source="l1", first=0))
LOOKUP = encode(Lookup((KeysOf(SPACE.tail, bytes(32)),)))
REQUESTS: list[tuple[str, str, Any, set[str]]] = [
    # what is asked, and with which scopes beside full
    ("GET", "/instances", None, {"read"}),
    ("GET", "/metrics", None, {"read"}),
    ("GET", "/l2/status", None, {"read"}),
    ("GET", "/directory/stats", None, {"read"}),
    ("POST", "/query", {"model": "m", "token_ids": []}, {"read", "member"}),
    ("POST", "/directory/lookup", {"keys": []}, {"read", "member"}),
    ("POST", "/fleet/lookup", LOOKUP, {"read", "member"}),
    ("POST", "/instances", {"instance_id": "i"}, {"member"}),
    ("POST", "/l2/events", {"instance_id": "i", "seq": 1, "events": []}, {"member"}),
    ("POST", "/events", {"batches": []}, {"member"}),
    ("POST", "/fleet/journal", PAGE, {"member"}),
    ("PUT", "/l2/quota/a", {"limit_gb": 1}, set()),
    ("DELETE", "/l2/quota/a", None, set()),
    ("POST", "/cache/pins", {"model_name": "m", "token_ids": []}, set()),
    ("GET", "/cache/pins", None, {"read"}),
]


def test_each_scope_may_do_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("".join(f"{token} {scope}\n" for token, scope in TOKENS.items()))
    file.chmod(0o600)
    with CoordinatorProcess(tmp_path, "--token-file", str(file)) as coordinator:
        for method, path, body, scopes in REQUESTS:
            for token, scope in {**TOKENS, "wrong": "none", "": ""}.items():
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                status = coordinator.ask(method, path, body, headers).status
                admitted = "full" if scope == "" and token == "old" else scope
                if admitted == "full" or admitted in scopes:
                    assert status not in (401, 403), (method, path, token)
                elif token in ("wrong", ""):
                    assert status == 401, (method, path, token)
                else:
                    assert status == 403, (method, path, token)
        assert coordinator.ask("GET", "/healthz") == (200, {"status": "healthy"}), "probes need no token"
        log = coordinator.log.read_text()
        assert "operator" not in log
        assert "reader" not in log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tls-cert", "a.pem"), "belong together"),
        (("--tls-client-ca", "a.pem"), "--tls-cert"),
        (("--tls-bind-identity",), "--tls-client-ca"),
        (("--host", "0.0.0.0"), "--token-file, or --allow-unauthenticated"),
        (("--host", "coordinator.example"), "--allow-unauthenticated"),
        (("--blend-chunk-size", "128"), "blend"),
        (("--chunk-size", "128"), "blend"),
    ],
)
def test_flags_that_cannot_work_stop_the_start(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        view_settings(read_settings(flags), ())


def test_files_that_without_certificates_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"none\.pem.*give PEM files"):
        HttpServer("127.0.0.1", 0, None, Litestar, name="test", tls=TlsFiles("none.pem", "none.key"))


def test_it_may_have_as_many_connections_as_the_machine_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORKED)  # the limit is this process's
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        with CoordinatorProcess(tmp_path) as coordinator:
            assert coordinator.process is not None
            limits = Path(f"/proc/{coordinator.process.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) == min(4096 + 256, hard)


class Authority:
    """Certificates of its own, by openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        folder.mkdir(exist_ok=True)
        self._run("req", "-x509", *self._new(name), "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
        self.certificate = folder / f"{name}.pem"

    def issue(self, name: str, alternative: str = "") -> tuple[str, str]:
        """Certificate and key."""
        self._run("req", *self._new(name), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "")
        self._run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key"),
            *("-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", str(extensions)),
        )
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def _new(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*curve, "-nodes", "-keyout", f"{name}.key")

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


def ask(url: str, context: ssl.SSLContext, path: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_client_speaks_for_the_name_in_its_certificate(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "others", "others")
    certificate, key = ours.issue("coordinator", "IP:127.0.0.1")
    flags = (
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
        "--tls-client-ca",
        str(ours.certificate),
        "--tls-bind-identity",
    )
    coordinator = CoordinatorProcess(tmp_path, *flags)
    coordinator.url = coordinator.url.replace("http:", "https:")

    def client(pair: tuple[str, str] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(ours.certificate))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    mine = client(ours.issue("server-1"))
    coordinator.context = mine
    with coordinator:
        assert ask(coordinator.url, mine, "/instances", {"instance_id": "server-1"}) == 200
        assert ask(coordinator.url, mine, "/instances", {"instance_id": "server-2"}) == 403
        second = client(ours.issue("any", "DNS:server-2,DNS:server-3"))
        assert ask(coordinator.url, second, "/instances", {"instance_id": "server-2"}) == 200
        assert ask(coordinator.url, second, "/fleet/heartbeat/server-1", {}) in (403, 422)
        events = {"seq": 1, "events": []}
        assert ask(coordinator.url, second, "/l2/events", {"instance_id": "server-1", **events}) == 403
        assert ask(coordinator.url, second, "/l2/events", {"instance_id": "server-3", **events}) == 200
        for foreign in (None, others.issue("server-1")):
            with pytest.raises(OSError):
                ask(coordinator.url, client(foreign), "/instances")
        page = encode(JournalPage(instance="server-1", incarnation="1", source="l1", first=0))
        request = urllib.request.Request(coordinator.url + "/fleet/journal", page)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=10, context=second)
