"""Programs that are forked from the process that has imported vLLM behave like those that an interpreter starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import psutil
import pytest

from demo.child_process import ChildProcess
from demo.engine_process import ENGINE_PYTHON, engine_environment, preloaded
from demo.preloaded import ENGINE, Preloaded

PROGRAM = """
import os, sys, time
print("argument", sys.argv[1], os.environ["OWN"], "vllm" in sys.modules, os.getpid() == os.getpgid(0), flush=True)
print("complaint", file=sys.stderr, flush=True)
line = sys.stdin.readline()
if line == "sleep\\n":
    time.sleep(60)
sys.exit(3)
"""


@pytest.fixture
def child(tmp_path: Path) -> ChildProcess:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = engine_environment(1) | {"OWN": "variable"}
    command = [str(ENGINE_PYTHON), str(script), "one"]
    return ChildProcess("program", command, tmp_path / "log", environment, preloaded(ENGINE_PYTHON))


@pytest.mark.engine
@pytest.mark.usefixtures("engine_environment")
def test_it_has_its_arguments_variables_and_pipes_and_its_status_is_known(child: ChildProcess) -> None:
    child.start(piped=True)
    with child.stdout as said:
        assert said.readline().split() == ["argument", "one", "variable", "True", "True"]
        assert child.running
        child.stdin.close()
        assert child.wait(20)
        assert said.read() == ""
    assert child.stop(1) == 3
    assert child.log_path.read_text().startswith("complaint\n")


@pytest.mark.engine
@pytest.mark.usefixtures("engine_environment")
def test_one_that_is_stopped_and_killed_is_gone(child: ChildProcess) -> None:
    child.start(piped=True)
    with child.stdout as said:
        print("sleep", file=child.stdin, flush=True)
        said.readline()
        child.pause()
        assert not child.wait(0.2)
        child.kill()
        assert child.ended
        assert said.read() == ""
    assert not psutil.pid_exists(child.pid)
    assert child.stop(1) == -signal.SIGKILL


def test_an_environment_without_vllm_says_so(tmp_path: Path) -> None:
    process = Preloaded(Path(sys.executable), engine_environment(1), ENGINE)
    with (tmp_path / "log").open("a") as log:
        for _ in range(2):
            with pytest.raises(OSError, match="No module named 'vllm'"):
                process.popen([sys.executable, "-c", "1"], {}, log, piped=True)
    process.close()
