"""A real Mooncake Store for tests, which is out of reach from other machines.

Members of a store listen on every address of their machine, whatever their configuration says.  So master, members and the
test itself run in a network namespace that has nothing but a loopback interface."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST
from lmcache_devkit import free_ports

REPOSITORY: Final = Path(__file__).parents[2]
_QUIET: Final = {"MC_TELEMETRY": "0", "MC_LOG_LEVEL": "ERROR"}
_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_UP_AND_RUNNING: Final = 0x1 | 0x40
_START_SECONDS: Final = 60.0


def why_not() -> str | None:
    """Why no such store can be had here; None where it can."""
    if find_spec("mooncake") is None:
        return "Mooncake's Python package is not installed"
    if _program() is None:
        return "there is no program mooncake_master"
    try:
        LoopbackNamespace().close()
    except OSError as error:
        return (
            f"no network namespace is to be had ({error}), and Mooncake would listen on every address of this machine"
        )
    return None


class LoopbackNamespace:
    """A network of its own, with a loopback interface and nothing else.  Raises OSError where this user may make none."""

    def __init__(self) -> None:
        before = _namespace_of_this_thread()
        try:
            _checked(_libc().unshare(_CLONE_NEWNET))
            try:
                _raise_loopback()
                self._descriptor = _namespace_of_this_thread()
            finally:
                _checked(_libc().setns(before, _CLONE_NEWNET))
        finally:
            os.close(before)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets of this thread, and of threads and processes that it starts meanwhile, are in there."""
        before = _namespace_of_this_thread()
        try:
            _checked(_libc().setns(self._descriptor, _CLONE_NEWNET))
            yield
        finally:
            _checked(_libc().setns(before, _CLONE_NEWNET))
            os.close(before)

    def close(self) -> None:
        os.close(self._descriptor)


class MooncakeMaster:
    """`mooncake_master` on ports of its own, the same ones after each start.  Use it in the namespace it was made in."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._rpc_port, self._metrics_port = free_ports(2)
        command = [
            str(_program()), f"--rpc_address={HOST}", f"--rpc_port={self._rpc_port}", f"--metrics_host={HOST}",
            f"--metrics_port={self._metrics_port}", "--logtostderr=1", "--minloglevel=1", *options,
        ]  # fmt: skip
        self.process: Final = ChildProcess(
            "mooncake_master", command, folder / "master.log", quiet_environment() | _QUIET
        )

    @property
    def address(self) -> str:
        return f"{HOST}:{self._rpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self._metrics_port}"

    def start(self) -> None:
        """Returns when it answers."""
        self.process.start()
        for port in (self._rpc_port, self._metrics_port):
            wait_for(lambda port=port: _listens(port), self.process)  # type: ignore[misc]

    def kill(self) -> None:
        """At once, with all that it knew."""
        self.process.kill()


class MooncakeMember:
    """A process that adds memory to a store, as another node does."""

    def __init__(self, master: MooncakeMaster, folder: Path, segment_bytes: int) -> None:
        command = [sys.executable, "-m", "tests.remote.mooncake_master", master.address, str(segment_bytes)]
        environment = quiet_environment() | _QUIET | {"PYTHONPATH": str(REPOSITORY)}
        self.process: Final = ChildProcess("mooncake member", command, folder / "member.log", environment)

    def start(self) -> None:
        """Returns when its memory is there."""
        self.process.start(piped=True)
        if self.process.stdout.readline().strip() != "ready":
            raise self.process.error("did not join the store")
        self.process.stdout.close()

    def kill(self) -> None:
        self.process.kill()


def wait_for(condition: Callable[[], bool], process: ChildProcess) -> None:
    """Until it holds.  Raises ChildError where the process ends before, or it takes too long."""
    end = time.monotonic() + _START_SECONDS
    while not condition():
        if not process.running or time.monotonic() > end:
            raise process.error("is not ready")
        time.sleep(0.02)


def setup_of(master: MooncakeMaster, segment_bytes: int) -> dict[str, str]:
    """What the library's `setup` takes to join."""
    return {
        "local_hostname": HOST,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_addr": master.address,
        "protocol": "tcp",
        "rdma_devices": "",
        "global_segment_size": str(segment_bytes),
        "local_buffer_size": str(16 << 20),
    }


def _program() -> Path | None:
    beside = Path(sys.executable).parent / "mooncake_master"
    found = str(beside) if beside.exists() else shutil.which("mooncake_master")
    return Path(found) if found else None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _namespace_of_this_thread() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 1.0):
            return True
    except OSError:
        return False


def _be_a_member(address: str, segment_bytes: str) -> None:
    from mooncake.store import MooncakeDistributedStore  # only in this process

    store = MooncakeDistributedStore()
    code = store.setup(
        {
            "local_hostname": HOST,
            "metadata_server": "P2PHANDSHAKE",
            "master_server_addr": address,
            "protocol": "tcp",
            "global_segment_size": segment_bytes,
        }
    )
    print("ready" if code == 0 else f"setup answered {code}", flush=True)
    sys.stdin.read()  # until the parent process ends it
    os._exit(0)


if __name__ == "__main__":
    _be_a_member(*sys.argv[1:])
