"""From a signal to an exit code, with a server that only pretends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

Environment = dict[str, str]

SCRIPT = """
import sys, time
import lmcache_core.app.commands.server as serving
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings

serving.SAME_SIGNAL_SECONDS = 0.2
serving.AT_ONCE_SECONDS = 0.5

class Pretended:
    class info:
        http_endpoint = None
    def start(self):
        {start}
        print("started", flush=True)
    def stop(self, drain_seconds):
        print("stop", drain_seconds, flush=True)
        {stop}

settings = ServerSettings(drain_seconds=3, **{settings})
sys.exit(serving.serve(settings, load_plugins(), lambda settings, plugins: Pretended()))
"""


@contextmanager
def serving(
    environment: Environment, stop: str = "return True", start: str = "pass", settings: str = "{}"
) -> Iterator[subprocess.Popen[str]]:
    script = SCRIPT.format(stop=stop, start=start, settings=settings)
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield child
    finally:
        child.kill()
        child.communicate(timeout=10)


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("stop", "code"), [("return True", 0), ("return False", 5)])
def test_one_signal_drains(child_environment: Environment, number: signal.Signals, stop: str, code: int) -> None:
    with serving(child_environment, stop) as child:
        assert line(child) == "started"
        child.send_signal(number)
        assert line(child) == "stop 3.0"
        assert child.wait(10) == code


def test_the_same_signal_sent_twice_is_one(child_environment: Environment) -> None:
    with serving(child_environment, "time.sleep(0.1); return True") as child:
        assert line(child) == "started"
        child.send_signal(signal.SIGTERM)
        assert line(child) == "stop 3.0"
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0


def test_a_second_signal_stops_at_once(child_environment: Environment) -> None:
    with serving(child_environment, "time.sleep(60 if drain_seconds else 0)") as child:
        assert line(child) == "started"
        child.send_signal(signal.SIGTERM)
        assert line(child) == "stop 3.0"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.send_signal(signal.SIGINT)
        assert line(child) == "stop 0.0"
        assert child.wait(10) == 5


def test_nothing_can_hold_up_the_end_after_a_second_signal(child_environment: Environment) -> None:
    with serving(child_environment, "time.sleep(60)") as child:
        assert line(child) == "started"
        child.send_signal(signal.SIGTERM)
        assert line(child) == "stop 3.0"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 5


def test_a_signal_during_the_start_is_not_lost(child_environment: Environment) -> None:
    with serving(child_environment, start="print('starting', flush=True); time.sleep(0.3)") as child:
        assert line(child) == "starting"
        child.send_signal(signal.SIGTERM)
        assert line(child) == "started"
        assert line(child) == "stop 3.0"
        assert child.wait(10) == 0


def test_a_server_that_cannot_start_is_stopped(child_environment: Environment) -> None:
    with serving(child_environment, start="raise OSError('no')") as child:
        assert line(child) == "stop 0.0"
        assert child.wait(10) == 1


def test_warnings_are_logged_and_the_level_is_obeyed(child_environment: Environment) -> None:
    environment = {**child_environment, "LMCACHE_CHUNK_SISE": "1"}
    with serving(environment) as child:
        assert line(child) == "started"
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=10)
    assert "WARNING lmcache_core.app.commands.server: LMCACHE_CHUNK_SISE is set" in errors
    assert "INFO lmcache_core.app.commands.server: No HTTP API is served: " in errors
    assert "INFO lmcache_core.app.commands.server: stopping signal=SIGTERM" in errors
    with serving(environment, settings="{'log_level': 'error'}") as child:
        assert line(child) == "started"
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=10)
    assert errors == ""


def test_what_a_start_imports(child_environment: Environment) -> None:
    """Up to the composition root: no web framework, no YAML, nothing of any plugin."""
    heavy = ("litestar", "uvicorn", "yaml", "torch", "opentelemetry")
    show = f"print([name for name in {heavy} if name in sys.modules], flush=True)"
    with serving(child_environment, start=show) as child:
        assert line(child) == "[]"


SIGNAL_TO_ANOTHER_THREAD = """
import signal, threading, time
from lmcache_core.app.commands.server import StopSignals
signals = StopSignals()
signals.install()

def strike():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(60)

threading.Thread(target=strike, daemon=True).start()
print(signals.wait(), flush=True)
"""


def test_a_signal_that_the_kernel_gives_to_another_thread_is_heard() -> None:
    """As it may when the main thread has one pending already, for example after SIGCONT."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_TO_ANOTHER_THREAD], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "SIGTERM\n"
