"""A Ceph of one node, with its S3 gateway: the nearest to a real object store that runs on one machine."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from demo.child_process import ChildError, ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST
from lmcache_devkit import free_ports

PROGRAMS: Final = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
START_SECONDS: Final = 120.0
"""For each step.  All of them take 15 s on an idle machine of two cores."""
STOP_SECONDS: Final = 20.0

CONFIGURATION: Final = """\
[global]
fsid = {fsid}
mon_host = [v2:{host}:{mon_port},v1:{host}:{old_mon_port}]
public_addr = {host}
cluster_addr = {host}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_osd_full_ratio = .99
mon_data_avail_crit = 1
osd_objectstore = memstore
memstore_device_bytes = {memory_bytes}
osd_memory_target = 1073741824
telemetry_enabled = false
run_dir = {folder}
crash_dir = {folder}
admin_socket = {folder}/$name.asok
pid_file = {folder}/$name.pid
log_file = {folder}/$name.log
keyring = {folder}/keyring
mon_data = {folder}/mon
osd_data = {folder}/osd
osd_journal = {folder}/osd/journal
mgr_data = {folder}/mgr
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint={host}:{port}
rgw_enable_usage_log = false
rgw_enable_ops_log = false
"""


def missing_programs() -> list[str]:
    """What has to be installed before a Ceph can run here; empty when nothing."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


class Ceph:
    """Monitor, one store in memory and one gateway, on free ports of the loopback interface, all listening there only.

    Use it as a context manager.  The folder holds everything that it writes; its path must be short (sockets lie in it).
    """

    def __init__(self, folder: Path, *, memory_bytes: int = 4 << 30) -> None:
        mon_port, old_mon_port, port = free_ports(3)
        self.port: Final = port
        self.access_key: Final = f"AKIA{secrets.token_hex(8).upper()}"
        self.secret_key: Final = secrets.token_hex(20)
        self._folder = folder
        self._configuration = folder / "ceph.conf"
        self._mon_addresses = f"[v2:{HOST}:{mon_port},v1:{HOST}:{old_mon_port}]"
        self._fsid = str(uuid.uuid4())
        self._environment = quiet_environment() | {"CEPH_CONF": str(self._configuration)}
        self._daemons: list[ChildProcess] = []
        for name in ("mon", "osd", "rgw"):
            (folder / name).mkdir(parents=True)
        self._configuration.write_text(
            CONFIGURATION.format(
                fsid=self._fsid,
                host=HOST,
                mon_port=mon_port,
                old_mon_port=old_mon_port,
                memory_bytes=memory_bytes,
                folder=folder,
                port=self.port,
            )
        )

    @property
    def endpoint(self) -> str:
        """`host:port`; plain HTTP."""
        return f"{HOST}:{self.port}"

    @property
    def pids(self) -> list[int]:
        """Of monitor, store and gateway, in this order."""
        return [daemon.pid for daemon in self._daemons]

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Within this the gateway takes connections and answers nothing: it is frozen."""
        gateway = self._daemons[-1]
        gateway.pause()
        try:
            yield
        finally:
            gateway.resume()

    def start(self) -> None:
        """Returns when the gateway answers; raises ChildError, with the end of a log, when a step takes too long."""
        try:
            self._start_monitor()
            self._start_store()
            self._start_gateway()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Gateway first, as it waits for the others when it goes."""
        for daemon in reversed(self._daemons):
            try:
                if daemon.running:
                    daemon.stop(STOP_SECONDS)
            except ChildError:
                pass  # killed: it has nothing on disk that anybody needs
            finally:
                daemon.kill()
        self._daemons.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_monitor(self) -> None:
        keyring, monmap = str(self._folder / "keyring"), str(self._folder / "monmap")
        self._run(["ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"])
        everything = ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"]
        self._run(["ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *everything])
        self._run(["monmaptool", "--create", "--addv", "a", self._mon_addresses, "--fsid", self._fsid, monmap])
        self._run(["ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", keyring])
        daemon = self._daemon("ceph-mon", "-i", "a")
        self._until(daemon, "has no quorum", lambda: bool(self._ask("quorum_status").get("quorum")))

    def _start_store(self) -> None:
        allowed = ["mon", "allow profile osd", "osd", "allow *", "mgr", "allow profile osd"]
        key = self._run(["ceph", "auth", "get-or-create", "osd.0", *allowed])
        with (self._folder / "keyring").open("a") as keyring:
            keyring.write(key)
        identity = str(uuid.uuid4())
        number = self._run(["ceph", "osd", "new", identity]).strip()
        self._run(["ceph-osd", "-i", number, "--mkfs", "--osd-uuid", identity])
        daemon = self._daemon("ceph-osd", "-i", number)
        self._until(daemon, "is not up", lambda: self._ask("osd", "stat").get("num_up_osds") == 1)

    def _start_gateway(self) -> None:
        keys = [f"--access-key={self.access_key}", f"--secret={self.secret_key}"]
        self._run(["radosgw-admin", "user", "create", "--uid=test", "--display-name=test", *keys])
        daemon = self._daemon("radosgw", "-n", "client.admin")
        self._until(daemon, "does not listen", self._listens)

    def _listens(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=1) as client:
                client.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                return client.recv(12) == b"HTTP/1.1 200"
        except OSError:
            return False

    def _daemon(self, program: str, *options: str) -> ChildProcess:
        """`-f`: in the foreground, so that its pid is known and it ends with us."""
        log_path = self._folder / f"{program}.out"
        daemon = ChildProcess(program, [program, "-f", *options], log_path, self._environment)
        self._daemons.append(daemon)
        daemon.start()
        return daemon

    def _until(self, daemon: ChildProcess, state: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if not daemon.running:
                raise daemon.error("ended before it was ready")
            if time.monotonic() > deadline:
                raise daemon.error(f"{state} after {START_SECONDS:.0f} s")
            time.sleep(0.1)

    def _ask(self, *question: str) -> dict[str, Any]:
        """What the monitor says; empty where it does not, yet."""
        try:
            said = self._run(["ceph", "--connect-timeout", "5", *question, "--format", "json"], must_succeed=False)
            answer: dict[str, Any] = json.loads(said)
        except json.JSONDecodeError:
            return {}
        return answer

    def _run(self, command: Sequence[str], *, must_succeed: bool = True) -> str:
        """What it printed; raises ChildError with all that it said where it fails or takes too long."""
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise ChildError(f"{command[0]} took longer than {START_SECONDS:.0f} s") from None
        if done.returncode and must_succeed:
            raise ChildError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout
