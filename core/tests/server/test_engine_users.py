"""Which users of this machine may connect, over every address, and whatever they send before they are gone."""

from __future__ import annotations

import os
import pwd
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from core.tests.server.conftest import StartServer
from core.tests.server.test_handshakes import address, until
from lmcache_client.client import EngineClient
from lmcache_client.errors import ConfigError
from lmcache_core.app.server import Server
from lmcache_core.contracts.clock import SystemClock
from lmcache_core.server.engine_socket import EngineSocket
from lmcache_core.server.handshakes import Handshakes
from lmcache_core.server.peers import EngineUsers, Owner, owner_of
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

OTHER = 23456
"""A user that is not the server's."""
TOKENS = list(range(64))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which root alone may")

PEER = """
import os, socket, sys, time
family, where, uid, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
GREETING = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x01NULL" + bytes(48)
command = b"\\x05READY\\x0bSocket-Type\\x00\\x00\\x00\\x06DEALER"
READY = bytes([4, len(command)]) + command
CLEAR = b"".join(bytes([more, 1]) + byte for more, byte in ((1, b"\\x01"), (1, b"\\x14"), (0, b"\\xc3")))

def connect():
    peer = socket.socket(getattr(socket, family))
    peer.settimeout(3)
    peer.connect(where if family == "AF_UNIX" else (where.rpartition(",")[0], int(where.rpartition(",")[2])))
    return peer

def ask():
    with connect() as peer:
        heard = b""
        try:
            peer.sendall(GREETING + READY)
            while len(heard) < 64 + 10:
                part = peer.recv(4096)
                if not part:
                    return "closed"
                heard += part
            peer.sendall(CLEAR)
            return "answered" if peer.recv(4096) else "closed"
        except (ConnectionResetError, BrokenPipeError):
            return "closed"

def hasty(rounds):
    for number in range(rounds):
        try:
            with connect() as peer:
                peer.sendall(GREETING + READY)
                time.sleep((number % 20) / 4000)
                peer.sendall(CLEAR)
                if number % 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        except OSError:
            pass
    return "done"

print("ready", flush=True)
print(hasty(int(how)) if how.isdigit() else ask(), flush=True)
"""


def peer_of(uid: int, endpoint: str, how: str = "ask", prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    if endpoint.startswith("ipc://"):
        family, where = "AF_UNIX", endpoint.removeprefix("ipc://")
    else:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        family, where = ("AF_INET6" if ":" in host else "AF_INET"), f"{host.strip('[]')},{port}"
    command = [*prefix, sys.executable, "-c", PEER, family, where, str(uid), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result_of(peer: subprocess.Popen[str]) -> str:
    said, _ = peer.communicate(timeout=60)
    return said.split()[-1]


@pytest.fixture
def engine(endpoint: str) -> Iterator[FakeEngine]:
    with FakeEngine(endpoint) as engine:
        assert engine.store(TOKENS)
        yield engine


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """The process has a fixed number of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256 + max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_connection_without_a_descriptor_to_look_up_its_owner_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    port = EngineSocket(1 << 20, SystemClock())
    handshakes = Handshakes(port, EngineUsers.named([]), SystemClock())
    thread = threading.Thread(target=handshakes.run)
    thread.start()
    endpoint = port.bind("127.0.0.1", 0)
    try:
        with socket.socket() as first:
            with free_descriptors(1):
                first.connect(address(endpoint))
                first.settimeout(10)
                while first.recv(100):
                    pass
            assert "no free file descriptors" in caplog.text
            with zmq.Context() as context, context.socket(zmq.DEALER) as client:
                client.setsockopt(zmq.LINGER, 0)
                client.connect(endpoint)
                client.send_multipart([b"uid", b"\x16"])
                assert port.socket.poll(10_000), "later handshakes wait for it"
    finally:
        port.close()
        thread.join()


def test_an_owner_that_cannot_be_looked_up_is_not_a_peer_elsewhere() -> None:
    near, far = socket.socket(), socket.socket()
    with near, far:
        near.bind(("127.0.0.1", 0))
        near.listen()
        far.connect(near.getsockname())
        accepted, _ = near.accept()
        with accepted, free_descriptors(0), pytest.raises(OSError, match="Too many open files"):
            owner_of(accepted)


def test_names_of_forbidden_users_are_looked_up_for_lines_that_are_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name service may take seconds."""
    asked: list[int] = []
    lookup = pwd.getpwuid

    def seen(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        return lookup(uid)

    monkeypatch.setattr(pwd, "getpwuid", seen)
    port = EngineSocket(1 << 20, SystemClock())
    handshakes = Handshakes(port, EngineUsers(frozenset()), SystemClock())
    thread = threading.Thread(target=handshakes.run)
    thread.start()
    endpoint = port.bind("127.0.0.1", 0)
    try:
        for _ in range(5):
            socket.create_connection(address(endpoint)).close()
            with socket.create_connection(address(endpoint)) as connection:
                connection.settimeout(10)
                while connection.recv(100):
                    pass
        assert until(lambda: handshakes.counters.forbidden >= 5)
    finally:
        port.close()
        thread.join()
    assert asked == [os.geteuid()]
    assert f"({os.geteuid()})" in caplog.text


@needs_root
def test_another_user_is_refused_with_the_remedy(
    server: Server, endpoint: str, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert result_of(peer_of(OTHER, endpoint)) == "closed"
    assert until(lambda: server.status()["connections"]["forbidden"] == 1)
    assert "--engine-users" in caplog.text
    assert f"user {OTHER}" in caplog.text
    assert engine.lookup(TOKENS) == 4
    assert until(lambda: "engines_forbidden" in {each["name"] for each in server.status()["conditions"]})
    assert server.counts().port.connections.forbidden == 1


@needs_root
def test_the_own_user_is_admitted(endpoint: str, engine: FakeEngine) -> None:
    assert result_of(peer_of(os.geteuid(), endpoint)) == "answered"


@needs_root
@pytest.mark.parametrize("users", [(str(OTHER),), ("any",), ("nobody", str(OTHER))])
def test_users_that_are_named_are_admitted(start_server: StartServer, users: tuple[str, ...]) -> None:
    server = start_server(engine_users=users)
    assert result_of(peer_of(OTHER, server.info.engine_endpoint)) == "answered"
    assert result_of(peer_of(0, server.info.engine_endpoint)) == "answered"
    expected = "answered" if users == ("any",) else "closed"
    assert result_of(peer_of(OTHER + 1, server.info.engine_endpoint)) == expected


@needs_root
def test_every_address_of_this_machine_is_checked(start_server: StartServer) -> None:
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    addresses = ["127.0.0.1", "127.7.7.7", *(each for each in own if ":" not in each)]
    addresses6 = ["[::1]", *(f"[::ffff:{each}]" for each in addresses), *(f"[{each}]" for each in own if ":" in each)]
    for bound, hosts in (("0.0.0.0", addresses), ("::", addresses + addresses6)):
        if bound == "::" and not Path("/proc/net/if_inet6").exists():
            continue
        port = address(start_server(host=bound).info.engine_endpoint)[1]
        for host in hosts:
            assert result_of(peer_of(OTHER, f"tcp://{host}:{port}")) == "closed", (bound, host)
            assert result_of(peer_of(0, f"tcp://{host}:{port}")) == "answered", (bound, host)


@needs_root
def test_root_of_a_user_namespace_is_the_user_who_made_it(endpoint: str, engine: FakeEngine) -> None:
    """Made by another user, who calls himself root in there."""
    become = "os.setresuid(uid, uid, uid)"
    script = PEER.replace(
        become,
        f"{become}; libc = ctypes.CDLL(None)\n"
        "libc.prctl(4, 1)  # dumpable again, so that its own files in /proc are its own\n"
        "assert libc.unshare(0x10000000) == 0\n"
        f"open('/proc/self/uid_map', 'w').write('0 {OTHER} 1')\n"
        "assert os.geteuid() == 0",
    )
    host, port = address(endpoint)
    done = subprocess.run(
        [sys.executable, "-c", "import ctypes\n" + script, "AF_INET", f"{host},{port}", str(OTHER), "ask"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "ready" not in done.stdout:
        pytest.skip(f"no user namespaces here: {done.stderr.splitlines()[-1:]}")
    assert done.stdout.split()[-1] == "closed"
    assert engine.lookup(TOKENS) == 4


@contextmanager
def server_process(log: Path, *prefix: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Its endpoint, once it answers."""
    port = free_port()
    command = [*prefix, sys.executable, "-m", "lmcache_core", "server", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*command, "--no-http", "--l1-size-gb", "0.0625", *options], stdout=file, stderr=file, cwd="/"
        )
    try:
        assert until(lambda: b"engine port is open" in log.read_bytes() or child.poll() is not None, 60)
        if child.poll() is not None:
            pytest.skip(f"it cannot be run so here: {log.read_text()[-300:]}")
        yield f"tcp://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(30)


@needs_root
def test_a_server_in_a_user_namespace_refuses_users_that_it_does_not_know(tmp_path: Path) -> None:
    """It sees them all as one user, the kernel's substitute for those that have no number in there: 65534, often the user
    `nobody`."""
    log = tmp_path / "log"
    options = ("--engine-users", "65534")
    with server_process(log, "unshare", "--user", "--map-root-user", options=options) as endpoint:
        assert result_of(peer_of(0, endpoint)) == "answered"
        for unknown in (OTHER, 65534):
            assert result_of(peer_of(unknown, endpoint)) == "closed"
        assert until(lambda: "--engine-users" in log.read_text())


@needs_root
def test_root_and_its_own_user_reach_a_server_that_is_not_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    uid = ("--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups")
    with server_process(tmp_path / "log", "setpriv", *uid) as endpoint:
        assert result_of(peer_of(OTHER, endpoint)) == "answered"
        assert result_of(peer_of(0, endpoint)) == "answered"
        assert result_of(peer_of(OTHER + 1, endpoint)) == "closed"


@needs_root
def test_who_sends_and_is_gone_before_it_is_looked_up_is_refused(
    server: Server, endpoint: str, engine: FakeEngine
) -> None:
    """Hundreds of connections that send everything at once and close or reset, beside some of an engine, on the same
    descriptors."""
    before = server.status()["requests"]["requests"]
    peers = [peer_of(OTHER, endpoint, "300") for _ in range(3)]
    honest = 0
    while any(peer.poll() is None for peer in peers):
        with EngineClient(endpoint, timeout_seconds=30) as client:
            assert client.noop() == "OK"
            honest += 1
    assert [result_of(peer) for peer in peers] == ["done"] * 3
    assert until(lambda: server.status()["connections"]["accepted"] >= 900)
    assert honest > 10
    assert server.status()["requests"]["requests"] == before + honest
    assert engine.lookup(TOKENS) == 4


@needs_root
def test_an_engine_connects_while_others_hang_in_their_handshake(endpoint: str) -> None:
    half = [socket.create_connection(address(endpoint)) for _ in range(5)]
    peers = [peer_of(OTHER, endpoint) for _ in range(3)]
    with EngineClient(endpoint, timeout_seconds=20) as client:
        assert client.noop() == "OK"
    assert [result_of(peer) for peer in peers] == ["closed"] * 3
    for each in half:
        each.close()


def test_owners_of_sockets_are_the_kernels_word(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            assert owner_of(accepted) == Owner(os.geteuid())
            client.close()
            assert owner_of(accepted) is None, "a socket without an inode has user 0 and no owner"
    near, far = socket.socketpair()
    with near, far:
        assert owner_of(near) == Owner(os.geteuid())


def test_a_listener_at_the_peers_address_is_not_its_owner() -> None:
    """The kernel answers with it where the connection is gone."""
    with socket.socket() as client, socket.create_server(("127.0.0.1", 0)) as listener:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("127.0.0.1", 0))
        own = client.getsockname()
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
            client.close()
            try:
                second = socket.create_server(own, reuse_port=False)
            except OSError:
                pytest.skip("the port is not free yet")
            with second:
                assert owner_of(accepted) is None


@pytest.mark.parametrize(
    ("owner", "uids", "admitted"),
    [
        (Owner(5), {5}, True),
        (Owner(6), {5}, False),
        (Owner(), {5}, False),
        (Owner(is_elsewhere=True), {5}, True),
        (Owner(), None, True),
    ],
)
def test_who_is_admitted(owner: Owner, uids: set[int] | None, admitted: bool) -> None:
    assert EngineUsers(uids).admit(owner) is admitted


def test_users_are_named_by_name_or_number() -> None:
    assert EngineUsers.named(()).uids == {os.geteuid(), 0}
    assert EngineUsers.named(("nobody", "77")).uids == {os.geteuid(), 0, 65534, 77}
    assert EngineUsers.named(("any",)).uids is None
    with pytest.raises(ConfigError, match="no user is called 'no-such-user'"):
        EngineUsers.named(("no-such-user",))
    with pytest.raises(ConfigError, match="'any' admits every user"):
        EngineUsers.named(("any", "root"))


def test_users_that_this_namespace_does_not_know_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmcache_core.server import peers

    uid_map = tmp_path / "uid_map"
    monkeypatch.setattr(peers, "_MAP_FILE", uid_map)
    for text, expected in (("0 0 4294967295", Owner(65534)), ("0 100000 65536", Owner()), ("0 1000 1", Owner())):
        uid_map.write_text(text)
        assert peers._known(65534) == expected
        assert peers._known(1000) == Owner(1000)
