"""`lmcache bench transfer`, with the channels of lmcache-p2p."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from lmcache_core.app.cli import main
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.bench.channels import Objects, Side, open_side, serve

SMALL = ("--object-size", "1MiB", "--num-objects", "20", "--iters", "2")
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("channel", ["tcp", "shm"])
def test_two_processes_of_this_machine(channel: str, capsys: Captured) -> None:
    asked = ["bench", "transfer", "--transfer-channel-type", channel, *SMALL, "--num-source-objects", "3"]
    assert main([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["channel"], said["objects"], said["object_bytes"], said["wrong"]) == (channel, 20, 1 << 20, 0)
    assert len(said["seconds"]) == 2
    expected = [20 * 2**20 / each / 1e9 for each in said["seconds"]]
    assert said["gb_per_second"] == pytest.approx(expected)


def test_a_server_and_a_client_of_two_command_lines(capsys: Captured) -> None:
    command = [sys.executable, "-m", "lmcache_core", "bench", "transfer", "--role", "server", "--url", "127.0.0.1:0"]
    with subprocess.Popen([*command, *SMALL], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.fullmatch(r"listening on (127\.0\.0\.1:\d+)\n", line)
        assert found, line
        client = ["bench", "transfer", "--role", "client", "--url", found[1], *SMALL]
        for _ in range(2):
            assert main(client) == 0
            assert "20 objects of 1 MiB by tcp: " in capsys.readouterr().out
        assert main([*client, "--transfer-channel-type", "shm"]) == 2
        assert "the server has the channel tcp" in capsys.readouterr().err
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


class Serving:
    """A server in this process, whose memory a test changes."""

    def __init__(self, side: Side, address: str) -> None:
        self.side, self.address = side, address


@pytest.fixture
def serving() -> Iterator[Serving]:
    objects, over = Objects(1 << 20, 4), threading.Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        open_side(load_plugins(), "tcp", {}, "127.0.0.1", objects.total, "test") as side,
    ):
        thread = threading.Thread(target=serve, args=(listener, side, objects, 0, lambda _: over.is_set()))
        thread.start()
        try:
            yield Serving(side, f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            over.set()
            thread.join(20)


def client(address: str) -> list[str]:
    return [
        "bench",
        "transfer",
        "--role",
        "client",
        "--url",
        address,
        "--num-objects",
        "4",
        "--iters",
        "1",
        "--warmup",
        "0",
    ]


def test_what_is_not_what_the_server_has_said_is_counted(serving: Serving, capsys: Captured) -> None:
    assert main(client(serving.address)) == 0
    serving.side.region.view[(1 << 20) + 5000] ^= 1
    assert main([*client(serving.address), "--json"]) == 1
    assert json.loads(capsys.readouterr().out.partition("right\n")[2])["wrong"] == 1


def test_what_the_lease_does_not_cover_is_an_error(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(serving.side.channel, "expose", lambda *_: None)
    assert main(client(serving.address)) == 1
    assert "an object of 1048576 bytes was not read: " in capsys.readouterr().err


def test_something_else_that_listens(capsys: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(client(f"127.0.0.1:{other.getsockname()[1]}")) == 1
        thread.join(20)
    assert "is not `lmcache bench transfer --role server`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--nixl-backend", "UCX"], "--nixl-backend has no meaning here: settings of a channel are its own"),
        (["--listen-url", "0.0.0.0:7601"], "--listen-url has no meaning here: give --url alone"),
        (["--control-url", "0.0.0.0:7610"], "--control-url has no meaning here: give --url alone"),
        (["--page-size", "524288"], "give the size of objects with --object-size"),
        (["--use-lazy"], "--use-lazy has no meaning here"),
        (["--url", "7600"], "expected an address such as"),
        (["--num-objects", "0"], "--num-objects 0: expected 1 or more"),
        (["--object-size", "4096"], "more than the header page"),
        (["--buffer-size", "1MiB"], "raise it, or lower --num-objects"),
        (["--channel-settings", "["], "--channel-settings: not JSON"),
        (["--channel-settings", "[]"], "--channel-settings: expected a JSON object"),
        (["--channel-settings", '{"speed": 1}'], "--transfer-channel-type tcp"),
        (["--transfer-channel-type", "pigeon"], "no transfer channel is called 'pigeon'"),
        (["--server-timeout", "0"], "--server-timeout 0: expected more than 0"),
    ],
)
def test_mistakes_are_named(flags: list[str], expected: str, capsys: Captured) -> None:
    assert main(["bench", "transfer", "--role", "server", "--url", "127.0.0.1:0", *flags]) == 2
    assert expected in capsys.readouterr().err


def test_an_address_where_nothing_listens(capsys: Captured) -> None:
    assert main(client("127.0.0.1:1")) == 3
    assert "start `lmcache bench transfer --role server` there" in capsys.readouterr().err


def test_a_server_without_clients_ends() -> None:
    objects = Objects(8192, 1)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        open_side(load_plugins(), "tcp", {}, "127.0.0.1", objects.total, "test") as side,
    ):
        serve(listener, side, objects, 0, lambda idle: idle > 0.3)
