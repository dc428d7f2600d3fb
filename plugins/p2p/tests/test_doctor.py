"""What `lmcache doctor` says of peers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lmcache_core import CheckResult
from lmcache_core.app.cli import main
from lmcache_devkit import free_port
from lmcache_p2p import doctor
from lmcache_p2p.identity import KeyPair, PeerUrl
from lmcache_p2p.settings import PeerSettings


def found(values: dict[str, Any] | None = None, **settings: Any) -> list[CheckResult]:
    url = f"tcp://127.0.0.1:{free_port()}"
    made = PeerSettings.model_validate({"advertise_url": url, "listen_url": url, **settings})
    return list(doctor.check(made, (values or {}).get))


def levels(results: list[CheckResult], word: str) -> list[str]:
    return [each.level for each in results if word in each.text]


@pytest.fixture
def coordinator() -> Iterator[Callable[[list[str]], str]]:
    """Lists servers with these addresses."""
    servers = []

    def start(urls: list[str]) -> str:
        said = [{"instance_id": f"s{at}", "p2p_advertised_url": url} for at, url in enumerate(urls)]

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"instances": said}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_free_address_that_is_reached_from_here() -> None:
    results = found()
    assert levels(results, "is free") == ["ok"]
    assert levels(results, "is reached from this machine; from no other one was it tried") == ["ok"]


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        results = found(advertise_url=url, listen_url=url)
    assert levels(results, "cannot be bound") == ["fail"]
    assert levels(results, "is reached") == ["ok"], "what listens there may be this server"


def test_an_advertised_address_where_nothing_answers() -> None:
    results = found(advertise_url=f"tcp://127.0.0.1:{free_port()}")
    assert levels(results, "is not reached from this machine: Connection refused") == ["warn"]


@pytest.mark.parametrize(
    ("url", "expected"), [("http://10.1.2.3:9", ["warn"]), ("http://127.0.0.1:9", []), ("http://localhost:9", [])]
)
def test_a_loopback_address_with_a_coordinator_elsewhere(
    url: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_peers", lambda *_: iter(()))
    assert levels(found({"coordinator_url": (url,)}), "cannot reach 127.0.0.1") == expected


def test_the_channel_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(found(), "/dev/shm can be written") == ["ok"]
    off = {"l1_shared_memory": False}
    assert levels(found(off), "needs L1 in /dev/shm") == ["warn"]
    assert levels(found(off, transfer_engine="shm"), "needs L1 in /dev/shm") == ["fail"]
    assert levels(found(off, transfer_engine="tcp"), "/dev/shm") == []
    monkeypatch.setattr(doctor, "SHM_ROOT", Path("/proc/nowhere"))
    assert levels(found(transfer_engine="shm"), "No such file") == ["fail"]


def test_peers_are_connected_to(coordinator: Callable[[list[str]], str]) -> None:
    key = KeyPair.new().public
    with socket.create_server(("127.0.0.1", 0)) as peer:
        good = str(PeerUrl(f"tcp://127.0.0.1:{peer.getsockname()[1]}", key))
        url = coordinator([good, "", "not one"])
        assert levels(found({"coordinator_url": (url,)}), "1 of 1 peers") == ["ok"]
        bad = str(PeerUrl(f"tcp://127.0.0.1:{free_port()}", key))
        results = found({"coordinator_url": ("http://127.0.0.1:1", coordinator([good, bad]))})
        assert levels(results, "1 of 2 peers") == ["warn"]
        assert levels(results, "s1: Connection refused") == ["warn"]
    assert levels(found({"coordinator_url": (coordinator([]),)}), "knows no other server") == ["ok"]


def test_the_command_gives_it_the_coordinators_of_the_configuration(
    coordinator: Callable[[list[str]], str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--coordinator-url", coordinator([]), "--p2p-advertise-url", f"tcp://127.0.0.1:{free_port()}"]
    main(["doctor", "--skip-adapters", "--l1-size-gb", "0.1", "--json", *flags])
    results = [each for each in json.loads(capsys.readouterr().out)["results"] if each["probe"] == "service p2p"]
    assert any("knows no other server that is a peer" in each["text"] for each in results), results
    assert not [each for each in results if "failed" in each["text"]]
