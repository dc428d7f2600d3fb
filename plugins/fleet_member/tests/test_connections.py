"""How a member reaches coordinators: names with several addresses, TLS, and nothing at all where no coordinator is given."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core import ServerInfo, ServiceContext
from lmcache_fleet.http_connection import HttpConnection, UnreachableError, tls_context
from lmcache_fleet_member.member import Member, addresses_of, open_member
from lmcache_fleet_member.settings import CoordinatorFlags, MemberSettings, apply


def resolved(*addresses: str) -> list[Any]:
    family = {True: socket.AF_INET6, False: socket.AF_INET}
    return [(family[":" in each], socket.SOCK_STREAM, 6, "", (each, 9300)) for each in addresses]


def member_of(url: str) -> Member:
    context = cast(ServiceContext, SimpleNamespace(feeds=[], value_at=lambda _: None))
    member = Member(MemberSettings.model_validate({"urls": [url]}), context)
    member.start(ServerInfo("i", "b", "tcp://127.0.0.1:1", None, 16, "0"))
    return member


def test_each_address_of_a_name_is_a_coordinator_and_names_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        resolved("10.0.0.1", "10.0.0.2", "::1"),
        resolved("10.0.0.2", "10.0.0.3"),
        OSError("no answer"),
    ]

    def look_up(*_: Any, **__: Any) -> Sequence[Any]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return cast(Sequence[Any], answer)

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    member = Member(
        MemberSettings.model_validate({"urls": ["http://fleet:9300"]}),
        cast(ServiceContext, SimpleNamespace(feeds=[], value_at=lambda _: None)),
    )
    member.start(ServerInfo("i", "b", "tcp://127.0.0.1:1", None, 16, "0"))
    new, gone = member.look()
    assert (sorted(link.address for link in new), gone) == (["10.0.0.1", "10.0.0.2"], [])
    new, gone = member.look()
    assert [link.address for link in new] == ["10.0.0.3"]
    assert [link.address for link in gone] == ["10.0.0.1"]
    assert member.look() == ([], []), "a name that cannot be resolved now keeps what is known of it"
    assert [each["address"] for each in member.status()["coordinators"]] == ["10.0.0.2", "10.0.0.3"]


def test_a_name_without_an_address_is_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [])
    assert addresses_of("http://fleet") == set()
    member = Member(
        MemberSettings.model_validate({"urls": ["http://fleet"]}),
        cast(ServiceContext, SimpleNamespace(feeds=[], value_at=lambda _: None)),
    )
    member.start(ServerInfo("i", "b", "tcp://127.0.0.1:1", None, 16, "0"))
    (link,), _ = member.look()
    assert (link.url, link.address) == ("http://fleet", "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates of a server called `localhost` and of a client."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("localhost", "server-1"):
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{name}\n")
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        sign = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*sign, "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem")
    return folder


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        certificate = cast(ssl.SSLSocket, self.connection).getpeercert() or {}
        body = json.dumps(certificate.get("subject")).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port(certificates: Path) -> Iterator[int]:
    """Of a server that asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "localhost.pem", certificates / "localhost.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, host: str, **files: str | None) -> Any:
    tls = tls_context(files.get("ca"), files.get("cert"), files.get("key"))
    connection = HttpConnection(f"https://{host}:{port}", address="127.0.0.1", tls=lambda: tls)
    try:
        return connection.ask("GET", "/").json()
    finally:
        connection.close()


def test_both_sides_are_verified(certificates: Path, port: int) -> None:
    ca = str(certificates / "ca.pem")
    assert ask(port, "localhost", ca=ca) is None
    own = {"cert": str(certificates / "server-1.pem"), "key": str(certificates / "server-1.key")}
    assert ask(port, "localhost", ca=ca, **own) == [[["commonName", "server-1"]]]
    with pytest.raises(UnreachableError, match="certificate"):
        ask(port, "localhost")  # signed by an authority that is not known here
    with pytest.raises(UnreachableError, match="certificate"):
        ask(port, "other", ca=ca)  # a certificate of another name


@pytest.mark.parametrize(("flag", "field"), [("--coordinator-ca", "ca"), ("--coordinator-cert", "cert")])
def test_a_file_that_cannot_be_read_stops_the_start(flag: str, field: str, tmp_path: Path) -> None:
    settings = MemberSettings.model_validate({"urls": ("https://fleet",), field: str(tmp_path / "none.pem")})
    with pytest.raises(ConfigError, match=f"{flag} .*none.pem: cannot be read"):
        open_member(settings, cast(ServiceContext, SimpleNamespace()))


def test_files_of_tls_need_an_https_url() -> None:
    values = CoordinatorFlags.model_validate({"coordinator_url": "http://fleet", "coordinator_ca": "ca.pem"})
    with pytest.raises(ConfigError, match="--coordinator-ca has no effect without an https URL"):
        apply(values, frozenset({"coordinator_url", "coordinator_ca"}))


@pytest.mark.parametrize("name", ["coordinator_l2_event_flush_interval", "coordinator_event_flush_interval"])
def test_the_newer_names_mean_the_same(name: str) -> None:
    values = CoordinatorFlags.model_validate({"coordinator_url": "http://a", name: 2.5})
    settings = apply(values, frozenset({"coordinator_url", name}))["service:fleet_member"]
    assert settings["flush_interval"] == 2.5


SCRIPT = """
import sys, threading
from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.configuration import read_settings
plugins = load_plugins()
server = build(read_settings({"port": 0, "l1_size_gb": 0.01, **FLAGS}, plugins), plugins)
server.start()
names = [thread.name for thread in threading.enumerate()]
loaded = [name for name in sys.modules if name.startswith(("lmcache_fleet.", "lmcache_fleet_member.member"))]
server.stop(0)
print(any("coordinator" in name for name in names), bool(loaded), file=sys.stdout)
"""


@pytest.mark.parametrize(
    ("flags", "said"), [("{}", "False False"), ('{"coordinator_url": "http://127.0.0.1:9"}', "True True")]
)
def test_without_a_coordinator_nothing_of_this_is_imported_and_no_thread_runs(flags: str, said: str) -> None:
    script = SCRIPT.replace("FLAGS", flags)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == said, done.stderr
