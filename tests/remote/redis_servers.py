"""Redis servers of this machine, for as long as a test needs them: one, a cluster of three, or two with sentinels."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import redis

from lmcache_devkit.ports import free_port, is_free

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
SLOTS: Final = 16_384
MASTER: Final = "kv"
BUS_OFFSET: Final = 10_000
"""A node of a cluster speaks with the others on a port so much higher."""


class RedisServer:
    """One process.  It keeps its port when it is started again, and its data where its options say so."""

    def __init__(self, folder: Path, port: int, options: Sequence[str], *, password: str | None = None) -> None:
        self.port: Final = port
        self.folder: Final = folder
        self._options: Final = tuple(options)
        self._password: Final = password
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        command = [_program(), *self._options, "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder
            )
        try:
            wait_for(self._answers, f"redis-server did not start; see {log}")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """In an orderly way."""
        if self.running and self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def freeze(self) -> None:
        """It answers nothing until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """The caller closes it."""
        return redis.Redis(host=HOST, port=self.port, password=self._password, socket_timeout=20)

    def _answers(self) -> bool:
        if not self.running:
            tail = (self.folder / "log").read_text(errors="replace")[-1000:]
            raise RuntimeError(f"redis-server has ended: {tail}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, self.port)):
                return False
        if "--tls-port" in self._options:
            return True
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.AuthenticationError:
            return True
        except redis.exceptions.RedisError:
            return False


@contextmanager
def redis_server(
    folder: Path, *options: str, password: str | None = None, port: int | None = None
) -> Iterator[RedisServer]:
    """Keeps its data in memory unless the options say otherwise.  `password`: of its default user, where options set one."""
    persistence = () if "--appendonly" in options else ("--appendonly", "no")
    base = ("--save", "", *persistence, *options)
    server = RedisServer(folder, port or free_port(), base, password=password)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def redis_cluster(folder: Path, count: int = 3, *options: str) -> Iterator[list[RedisServer]]:
    """Masters without replicas, the slots shared evenly, set up and agreed."""
    with ExitStack() as undo:
        servers = [
            undo.enter_context(
                redis_server(
                    folder / f"node{number}", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                    "--cluster-require-full-coverage", "no", *options, port=free_port_with_bus(),
                )
            )
            for number in range(count)
        ]  # fmt: skip
        clients = [undo.enter_context(server.client()) for server in servers]
        for number, client in enumerate(clients):
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers[1:]:
            clients[0].execute_command("CLUSTER", "MEET", HOST, server.port)

        def agreed() -> bool:
            for client in clients:
                info = client.execute_command("CLUSTER INFO")
                if info["cluster_state"] != "ok" or info["cluster_known_nodes"] != str(count):
                    return False
                if info["cluster_slots_ok"] != str(SLOTS):
                    return False
            return True

        wait_for(agreed, "the nodes of the cluster do not agree")
        yield servers


class Sentinels:
    """A master, a replica, and three who watch them."""

    def __init__(self, servers: Sequence[RedisServer], sentinels: Sequence[RedisServer]) -> None:
        self.servers: Final = tuple(servers)
        self.sentinels: Final = tuple(sentinels)

    def master_port(self) -> int:
        """As the first sentinel sees it."""
        with self.sentinels[0].client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
            return int(port)

    def kill_master(self) -> None:
        """Returns when the other one is the master."""
        old = self.master_port()
        next(server for server in self.servers if server.port == old).kill()
        wait_for(lambda: self.master_port() != old, "the sentinels name no other master")


@contextmanager
def redis_with_sentinels(folder: Path) -> Iterator[Sentinels]:
    with ExitStack() as undo:
        master = undo.enter_context(redis_server(folder / "one"))
        replica = undo.enter_context(
            redis_server(folder / "two", "--replicaof", f"{HOST} {master.port}", "--repl-diskless-sync-delay", "0")
        )
        with replica.client() as client:
            wait_for(lambda: client.info("replication")["master_link_status"] == "up", "the replica does not follow")
        sentinels = []
        for number in range(3):
            place = folder / f"sentinel{number}"
            place.mkdir()
            configuration = place / "sentinel.conf"
            configuration.write_text(
                f"sentinel monitor {MASTER} {HOST} {master.port} 2\n"
                f"sentinel down-after-milliseconds {MASTER} 500\n"
                f"sentinel failover-timeout {MASTER} 5000\n"
            )
            sentinel = RedisServer(place, free_port(), (str(configuration), "--sentinel"))
            undo.callback(sentinel.kill)
            sentinel.start()
            sentinels.append(sentinel)

        def know_each_other() -> bool:
            for sentinel in sentinels:
                with sentinel.client() as client:
                    reply = client.execute_command("SENTINEL", "MASTER", MASTER)
                    if reply[b"num-other-sentinels"] != b"2" or reply[b"num-slaves"] != b"1":
                        return False
            return True

        wait_for(know_each_other, "the sentinels do not find each other")
        yield Sentinels((master, replica), sentinels)


def wait_for(condition: Callable[[], bool], complaint: str, seconds: float = START_SECONDS) -> None:
    """Fails with the complaint when it does not come true.  Other processes do not report when they are ready."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(complaint)
        time.sleep(0.02)


def free_port_with_bus() -> int:
    """No process listens there now, nor `BUS_OFFSET` higher."""
    while not is_free((port := free_port()) + BUS_OFFSET):
        pass
    return port


def _program() -> str:
    """Skips the test where it is not installed."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("redis-server is not installed")
    return found
