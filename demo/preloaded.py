"""A process that has imported vLLM, or our commands, and becomes one program after the other by forking: an engine starts 13 s
of imports sooner, a server 0.8 s.

Run as a program in their environment, this file is that process; `Preloaded` is its other end.  A request is the
command line of a Python program with its environment, and comes with the program's stdin, stdout and stderr and with a
socket that its exit status is written to.  Threads do not outlive a fork, so nothing is computed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

ENGINE: Final = (
    "vllm.entrypoints.llm",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "lmcache_vllm.connector",
)
"""What engines import.  The stock one is not here: with numba, which it brings, vLLM cannot replace
its kernels."""
OURS: Final = (
    "litestar._kwargs",
    "litestar.plugins.pydantic",
    "lmcache_admin.api",
    "lmcache_admin.service",
    "lmcache_blend.view",
    "lmcache_client.sockets",
    "lmcache_coordinator.command",
    "lmcache_coordinator.routes",
    "lmcache_coordinator.server_api",
    "lmcache_coordinator.states.sqlite",
    "lmcache_core.app.build",
    "lmcache_core.app.cli",
    "lmcache_core.app.commands.server",
    "lmcache_core.app.console.plugin_commands",
    "lmcache_core.app.plugins.loading",
    "lmcache_core.builtin.log_subscriber",
    "lmcache_core.server.engine_driven_module",
    "lmcache_core.server.engine_socket",
    "lmcache_http.server",
    "lmcache_kv_layout.page_job",
    "lmcache_l2_fs.adapter",
    "lmcache_observability.dashboard.routes",
    "lmcache_observability.dashboard.snapshot",
    "lmcache_observability.metrics.history",
    "lmcache_observability.metrics.subscriber",
    "lmcache_observability.tracing.slowest_route",
    "lmcache_p2p.settings",
    "lmcache_pd.command",
    "lmcache_transfer_torch.module",
    "lmcache_transfer_torch.registry",
    "pydantic_settings",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "yaml",
)
"""What `lmcache server`, with the admin API, `lmcache coordinator` and `lmcache pd-proxy` import, beside plugins."""
START_METHODS: Final = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
"""vLLM spawns the processes of an engine on the CPU, each with all imports; here they are forked, as elsewhere."""
STATUS_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 1 << 18
SHOWN_CHARS: Final = 2000


class ForkedProcess:
    """As much of `subprocess.Popen` as `ChildProcess` uses, for a process that has another parent."""

    def __init__(self, pid: int, status: socket.socket, stdin: IO[str] | None, stdout: IO[str] | None) -> None:
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                said = self._status.recv(STATUS_BYTES)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("engine", timeout or 0) from None
            self._status.close()
            # Without a word, its parent has died.
            self.returncode = int.from_bytes(said, "little", signed=True) if said else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Preloaded:
    """Starts programs of one Python environment.  Its process ends with this one.  Not thread-safe."""

    def __init__(self, python: Path, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        """`modules`: what is imported."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [str(python), __file__, str(theirs.fileno()), *modules]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as this
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def popen(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[Any], *, piped: bool
    ) -> ForkedProcess:
        """`command`: a script or `-m` and a module, with arguments, behind the interpreter.  With `piped`, its stdin and stdout
        are pipes; otherwise stdin is empty and stdout goes to `log`, as stderr does.  Waits for the imports.  Raises OSError,
        with what it last printed, where the process with the imports has ended."""
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull) as nothing:
            standard: list[Any] = [nothing, log, log]
            mine: list[Any] = [None, None]
            if piped:
                (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
                standard = [os.fdopen(read_in, "rb"), os.fdopen(write_out, "wb"), log]
                mine = [os.fdopen(write_in, "w"), os.fdopen(read_out)]
            request = json.dumps([command[1:], dict(environment)]).encode()
            with contextlib.suppress(ConnectionError):  # there is no answer then
                socket.send_fds(self._control, [request], [theirs.fileno(), *(each.fileno() for each in standard)])
            if piped:
                for each in standard[:2]:
                    each.close()
        try:
            said = ours.recv(STATUS_BYTES)
        except ConnectionError:
            said = b""
        if not said:
            for each in (ours, *filter(None, mine)):
                each.close()
            self._log.seek(0)
            raise OSError(f"the process with the imports has ended: {self._log.read()[-SHOWN_CHARS:]}")
        return ForkedProcess(int.from_bytes(said, "little"), ours, *mine)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, with an empty stdin.  Raises as `popen` does."""
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = self.popen(command, environment, log, piped=True)
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            with process.stdout as stdout:
                said = stdout.read()
            status = process.wait()
            log.seek(0)
            return subprocess.CompletedProcess(command, status, said, log.read())

    def close(self) -> None:
        """The programs go on; nothing can be started any more."""
        self._control.close()
        self._process.wait()
        self._log.close()


def serve(control: socket.socket) -> tuple[Sequence[str], Mapping[str, str]]:
    """Returns in each child, with what it is to run."""
    children: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _report(children)
        if control not in ready:
            continue
        request, handles, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
        if not request:
            os._exit(0)
        status, *standard = handles
        command, environment = json.loads(request)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            for each in (control, woken, wake, *children.values()):
                each.close()
            os.close(status)
            for number, handle in enumerate(standard):
                os.dup2(handle, number)
                os.close(handle)
            return command, environment
        for handle in standard:
            os.close(handle)
        children[pid] = socket.socket(fileno=status)
        children[pid].send(pid.to_bytes(STATUS_BYTES, "little"))


def _report(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as waiting:
            try:
                waiting.send(os.waitstatus_to_exitcode(status).to_bytes(STATUS_BYTES, "little", signed=True))
            except OSError:
                pass  # it is not waited for


def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a program in this process, as the interpreter would have."""
    import random

    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(command[0]).resolve().parent))
        runpy.run_path(command[0], run_name="__main__")


def main() -> None:
    import gc
    import importlib
    import multiprocessing

    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path.pop(0)  # this folder
    for name in sys.argv[2:]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            if not name.startswith("lmcache_"):  # of ours, not each environment has all
                raise
    for name in filter(sys.modules.__contains__, START_METHODS):
        vars(sys.modules[name])["get_mp_context"] = lambda: multiprocessing.get_context("fork")
    gc.freeze()
    become(*serve(control))


if __name__ == "__main__":
    main()
