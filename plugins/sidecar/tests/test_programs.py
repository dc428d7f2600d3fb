"""Real programs: started, heard, started again, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmcache_sidecar import program
from lmcache_sidecar.program import Program
from lmcache_sidecar.program_files import find_programs
from lmcache_sidecar.service import Programs

WAIT_SECONDS = 20.0
FOR_EVER = "import time\nwhile True: time.sleep(60)\n"
STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\n{FOR_EVER}"


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Yard:
    """Programs of this test, and the thread that owns them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = Programs(())
        self.thread: threading.Thread | None = None

    def start(self, **texts: str) -> None:
        """Each is the text of a program, by its name with `_` for its dot."""
        paths = []
        for name, text in texts.items():
            path = self.folder / name.replace("_", ".")
            path.write_text(text)
            paths.append(str(path))
        environment = {"PATH": os.environ["PATH"], "TELL": "passed"}
        self.programs = Programs(
            [Program(file, environment, lambda line: line.replace("PLANTED", "***")) for file in find_programs(paths)]
        )
        self.thread = threading.Thread(target=self.programs.run, daemon=True)
        self.thread.start()

    def status(self, index: int = 0) -> dict[str, Any]:
        return self.programs.status()[index]

    def stop(self, grace_seconds: float = WAIT_SECONDS) -> bool:
        self.programs.stop(grace_seconds)
        return self.programs.wait_stopped()


@pytest.fixture
def yard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Yard]:
    caplog.set_level("INFO")
    yard = Yard(tmp_path)
    yield yard
    assert yard.stop(0.0)
    if yard.thread:
        yard.thread.join(WAIT_SECONDS)
        assert not yard.thread.is_alive()
    yard.programs.close()


def test_a_program_is_run_with_its_environment_and_what_it_writes_is_logged(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.start(
        a_py="import os, sys\nprint('out', os.environ['TELL'], 'PLANTED')\nprint('err', file=sys.stderr)\n" + FOR_EVER,
        b_sh='echo "shell $TELL $0"; exit 0',
    )
    wait_for(lambda: "[a.py] out passed ***" in caplog.text and "[a.py] err" in caplog.text)
    wait_for(lambda: yard.status(1)["state"] == "done")
    assert f"[b.sh] shell passed {yard.folder}/b.sh" in caplog.text
    assert "PLANTED" not in caplog.text
    running, done = yard.programs.status()
    assert (running["state"], running["restarts"], running["last_exit"]) == ("running", 0, None)
    assert running["uptime_seconds"] >= 0
    assert is_alive(running["pid"])
    assert (done["pid"], done["restarts"]) == (None, 0)
    assert done["last_exit"] == {"code": 0, "signal": None, "error": ""}


def test_all_that_a_program_has_written_is_read_although_it_has_ended(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.start(a_py="print(('x' * 300 + '\\n') * 190, flush=True)\nraise ValueError('the reason')\n")
    wait_for(lambda: yard.status()["last_exit"])
    assert "[a.py] ValueError: the reason" in caplog.text


def test_a_program_that_fails_is_started_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PAUSE_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(program, "PAUSE_MAX_SECONDS", 0.08)
    yard.start(a_sh=f"echo x >> {yard.folder}/starts; exit 3")
    wait_for(lambda: yard.status()["restarts"] >= 4)
    assert yard.status()["last_exit"] == {"code": 3, "signal": None, "error": ""}
    assert len((yard.folder / "starts").read_text().split()) >= 4


def test_a_program_that_is_killed_is_started_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PAUSE_FIRST_SECONDS", 0.02)
    yard.start(a_py=FOR_EVER)
    wait_for(lambda: yard.status()["pid"])
    first = yard.status()["pid"]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: yard.status()["pid"] not in (None, first))
    status = yard.status()
    assert (status["restarts"], status["state"]) == (1, "running")
    assert status["last_exit"] == {"code": None, "signal": "SIGKILL", "error": ""}


def test_pauses_double_and_begin_anew_after_a_long_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "PAUSE_MAX_SECONDS", 4.0)
    seconds = [0.0]
    (tmp_path / "a.sh").write_text("exit 1")
    (file,) = find_programs([str(tmp_path)])
    one = Program(file, {}, str, lambda: seconds[0])

    def is_gone() -> bool:
        one.look_for_end()
        return one.is_gone

    for pause, ran in ((1, 0), (2, 0), (4, 0), (4, 299), (4, 301), (2, 0)):
        one.start()
        started = seconds[0]
        seconds[0] += ran
        wait_for(is_gone)
        assert one.due_at == started + ran + (1 if ran > 300 else pause)


def test_a_stop_asks_the_program_and_everything_that_it_has_started(yard: Yard) -> None:
    last_words = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('bye') or 0))\n"
    yard.start(
        a_py=last_words + FOR_EVER,
        b_sh=f"sleep 1000 & echo $! > {yard.folder}/child\nwait\n",
        c_sh=f"sleep 1000 & echo $! > {yard.folder}/orphan; exit 0\n",
    )
    wait_for(lambda: yard.status(2)["state"] == "done")
    wait_for(lambda: (yard.folder / "child").exists() and (yard.folder / "child").read_text().strip())
    pids = [status["pid"] for status in yard.programs.status()[:2]]
    pids += [int((yard.folder / name).read_text()) for name in ("child", "orphan")]
    time.sleep(0.3)  # for the handler of a.py
    before = time.monotonic()
    assert yard.stop()
    assert time.monotonic() - before < WAIT_SECONDS / 2
    wait_for(lambda: not any(map(is_alive, pids)))
    assert [status["state"] for status in yard.programs.status()] == ["stopped", "stopped", "done"]


def test_one_that_does_not_want_to_end_is_killed(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.start(a_py=STUBBORN)
    wait_for(lambda: "ready" in caplog.text)
    pid = yard.status()["pid"]
    assert yard.stop(0.1)
    assert not is_alive(pid)
    assert yard.status()["last_exit"]["signal"] == "SIGKILL"


def test_a_shorter_grace_counts(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.start(a_py=STUBBORN)
    wait_for(lambda: "ready" in caplog.text)
    before = time.monotonic()
    yard.programs.stop(10 * WAIT_SECONDS)
    assert yard.stop(0.05)
    assert time.monotonic() - before < WAIT_SECONDS


def test_one_that_writes_without_end_is_read_a_little_at_a_time(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, read = [0.0], list[bytes]()
    (yard.folder / "a.sh").write_text("yes")
    (file,) = find_programs([str(yard.folder)])
    one = Program(file, {"PATH": os.environ["PATH"]}, str, lambda: seconds[0])
    monkeypatch.setattr(one._output, "feed", read.append)
    one.start()

    def has_read(times: int) -> bool:
        one.read()
        return len(read) >= times

    for turn in range(1, 6):
        wait_for(partial(has_read, turn))
        assert one.output_fd is None
        seconds[0] += program.READ_SECONDS
        assert one.output_fd is not None
    assert max(map(len, read)) <= program.READ_BYTES
    one.stop()

    def is_gone() -> bool:
        one.look_for_end()
        return one.is_gone

    wait_for(is_gone)


def test_its_lines_are_counted_and_it_can_be_stopped(yard: Yard) -> None:
    yard.start(a_sh="yes")
    wait_for(lambda: yard.status()["dropped_lines"] > 1000)
    pid = yard.status()["pid"]
    assert yard.stop()
    assert not is_alive(pid)


def test_what_cannot_be_executed_says_so(
    yard: Yard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "PAUSE_FIRST_SECONDS", 100.0)
    path = yard.folder / "binary"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    yard.start(binary=path.read_text())
    wait_for(lambda: yard.status()["last_exit"])
    assert yard.status()["last_exit"]["code"] == 127
    assert "[binary] cannot be run: Exec format error" in caplog.text


def test_programs_die_with_a_server_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(STUBBORN)
    server = f"""
import threading, sys
from lmcache_sidecar.program import Program
from lmcache_sidecar.program_files import find_programs
from lmcache_sidecar.service import Programs
programs = Programs([Program(file, {{}}, str) for file in find_programs([{str(tmp_path)!r}])])
threading.Thread(target=programs.run).start()
while not (pid := programs.status()[0]["pid"]): pass
print(pid, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        time.sleep(0.5)  # it has begun to ignore SIGTERM
        assert is_alive(pid)
        process.kill()
    wait_for(lambda: not is_alive(pid))


def test_a_fault_of_the_thread_does_not_lose_a_program(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor calls `run` again, on the same thread."""
    faults: list[BaseException] = []
    original = Programs._wait

    def fail_once(programs: Programs, seconds: float) -> None:
        original(programs, seconds)
        if not faults:
            faults.append(RuntimeError("injected"))
            raise faults[0]

    monkeypatch.setattr(Programs, "_wait", fail_once)
    run = Programs.run

    def run_twice(programs: Programs) -> None:
        with contextlib.suppress(RuntimeError):
            run(programs)
        run(programs)

    monkeypatch.setattr(Programs, "run", run_twice)
    yard.start(a_py=FOR_EVER)
    wait_for(lambda: yard.status()["pid"])
    pid = yard.status()["pid"]
    wait_for(lambda: faults)
    time.sleep(0.1)
    assert is_alive(pid)
    assert yard.status()["restarts"] == 0
