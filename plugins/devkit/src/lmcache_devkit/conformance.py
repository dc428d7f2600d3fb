"""Runs the conformance kit against one offer, in a process of its own.

The suite is a set of pytest files, one per kind.  What is under test travels in the environment and never on the command
line, where all users could read its secrets; what became of each requirement comes back as lines of a file.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core.app.console.command_line import PluginSelection
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.model.errors import PluginLoadError
from lmcache_devkit.requirement_names import expression

SUBJECT_VARIABLE: Final = "LMCACHE_CHECK"
REPORT_VARIABLE: Final = "LMCACHE_CHECK_REPORT"
CHECKS: Final = Path(__file__).with_name("checks")
"""Found by its place: pytest reads these files itself."""

_POLL_SECONDS: Final = 0.1
_CLEAN_UP_SECONDS: Final = 20.0
"""How long an interrupted check may take to remove what it made."""
_NOTHING_RAN: Final = 5
"""pytest's exit code where no test was selected."""
_MISUSED: Final = 4
"""pytest's exit code for a command line that it cannot read."""
_EXIT_SECONDS: Final = 5.0
"""How long a process whose tests are over may take to end; threads that its tests left may keep it for ever."""
_STUCK_SECONDS: Final = 15.0
"""How much later than its limit a check that hangs is abandoned: it could not be interrupted then."""
_STUCK: Final = "it took longer than {:g} s and could not be interrupted: native code that does not return"
_WRONG_EXPRESSION: Final = "ERROR: Wrong expression passed to '-k': "
_REASONS: Final[Mapping[str, Callable[[str, str], LMCacheError]]] = {
    "config": lambda name, text: ConfigError(text),
    "resource": lambda name, text: ResourceError(text),
    "plugin": PluginLoadError,
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one requirement.  `reason`: what was expected and what was seen, or why the requirement does not apply."""

    requirement: str
    outcome: str
    """"holds", "broken" or "not applicable"."""
    reason: str
    whole: str
    """Everything that pytest says of a requirement that is broken."""
    left: Sequence[str]
    """Objects that it stored and could not remove."""


class _Running(NamedTuple):
    """The requirement that runs: since when, since when it is in its present phase, and the limit of each phase in seconds."""

    requirement: str = ""
    started: float = 0.0
    phase: float = 0.0
    limit: float = math.inf

    def after(self, line: Mapping[str, Any], now: float) -> _Running:
        if "started" in line:
            return _Running(line["started"], now, now, line["limit"] or math.inf)
        if "requirement" in line:  # it is decided
            return _Running()
        return self._replace(phase=now) if line else self

    def is_stuck(self, now: float) -> bool:
        return now - self.phase > self.limit + _STUCK_SECONDS


class NotOpenedError(LMCacheError):
    """What is to be checked cannot be opened.  `reason` is the error that a server would end with."""

    def __init__(self, reason: LMCacheError, traceback: str) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.traceback = traceback


class SuiteFailedError(LMCacheError):
    """The suite itself cannot run, or has died: that says nothing about what is checked."""


def check_file(kind: OfferKind, checks: Path = CHECKS) -> Path:
    """The suite's file for this kind.  Raises ConfigError where there is none."""
    path = checks / f"check_{kind}.py"
    if not path.is_file():
        raise ConfigError(f"there are no requirements for a {kind.label} to be checked against")
    return path


def run_checks(
    path: Path,
    kind: OfferKind,
    name: str,
    settings: Mapping[str, Any],
    selection: PluginSelection,
    only: str | None = None,
    on_warning: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[str, float], None] = lambda requirement, seconds: None,
) -> Generator[CheckResult]:
    """Run the requirements of a file and yield each as it is decided; while the iteration waits for the next one, what the
    suite warns of goes to `on_warning`, and which one is running, and for how many seconds, to `on_progress`.  One that cannot
    be interrupted at its time limit is broken, and the last one.  Raises NotOpenedError, and runs none, where there is
    nothing to check, ConfigError where `only` cannot be read or matches no requirement, and SuiteFailedError.

    Whatever ends the iteration, Ctrl-C and SIGTERM included, the suite's process and its children are gone then, after
    they were given time to clean up.  Main thread only."""
    subject = json.dumps({"kind": kind, "name": name, "settings": dict(settings)})
    with tempfile.TemporaryDirectory(prefix="lmcache-check-") as folder:
        home = Path(folder)
        report = home / "report"
        report.touch()
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"} | {
            **selection.variables(),
            SUBJECT_VARIABLE: subject,
            REPORT_VARIABLE: str(report),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(_own_path()),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        }
        with (home / "output").open("wb") as output, _session(_command(path, home, only), environment, output) as child:
            running, failed, stopped = _Running(), "", False
            unopened: dict[str, str] | None = None
            ended: int | None = None
            for line in _lines(report, child):
                failed, unopened = line.get("failed", failed), line.get("unopened", unopened)
                running = running.after(line, time.monotonic())
                if "warned" in line:
                    on_warning(line["warned"])
                if "stopped" in line:
                    stopped = True
                    on_warning(f"{line['stopped']}, so those after them were not run")
                if "requirement" in line:
                    yield CheckResult(**line)
                if (ended := line.get("ended", ended)) is not None:
                    break
                if running.requirement:
                    on_progress(running.requirement, time.monotonic() - running.started)
                if running.is_stuck(time.monotonic()):
                    _signal(child, signal.SIGKILL)
                    on_warning(
                        f"the requirement '{running.requirement}' could not be interrupted, so those after it were not run"
                    )
                    yield CheckResult(
                        running.requirement, "broken", _STUCK.format(running.limit), _end_of(home / "output"), []
                    )
                    return
            code = _exit_code(child, ended)
        if unopened:
            raise NotOpenedError(_REASONS[unopened["fault"]](name, unopened["text"]), unopened["traceback"])
        if code == _NOTHING_RAN:
            raise ConfigError(f"no requirement matches -k '{only}'" if only else f"{path.name} has no requirement")
        if only and code == _MISUSED and (fault := _fault_of_expression(home / "output")):
            raise ConfigError(f"-k '{only}' cannot be read: {fault}; words with and, or, not are expected")
        if code not in (0, 1) and not stopped:
            said = failed or _end_of(home / "output")
            raise SuiteFailedError(_what_failed(code, running.requirement, said))


def _own_path() -> list[str]:
    """Where this process looks for modules before it looks in Python's own folders."""
    python = sysconfig.get_path("stdlib").rpartition(os.sep)[0]
    return [
        str(Path(folder).absolute()) for folder in takewhile(lambda folder: not folder.startswith(python), sys.path)
    ]


def _command(path: Path, home: Path, only: str | None) -> list[str]:
    plugins = ("lmcache_devkit.pytest_plugin", "lmcache_devkit.check_reporter", "no:cacheprovider")
    return [
        # -P, importlib and PYTHONPATH: neither the current folder nor the suite's comes before what this process imports
        *(sys.executable, "-P", "-m", "pytest", "-q", "--tb=short", "--import-mode=importlib"),
        *(word for plugin in plugins for word in ("-p", plugin)),
        # the suite's own configuration, so that none of the current directory applies
        *("-c", str(path.with_name("pytest.ini")), "--rootdir", str(path.parent), "--basetemp", str(home / "tests")),
        *(("-k", expression(only)) if only else ()),
        str(path),
    ]


@contextmanager
def _session(command: Sequence[str], environment: Mapping[str, str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, which ends with this context."""
    with _terminated_as_interrupted():
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield child
            child.wait()
        except BaseException:
            _signal(child, signal.SIGINT)  # pytest tears down what it has set up
            try:
                child.wait(_CLEAN_UP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            raise
        finally:
            _signal(child, signal.SIGKILL)  # and whatever it started
            child.wait()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a check as Ctrl-C does, instead of leaving the child behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def _lines(report: Path, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What the reporter writes, until the child has ended, and an empty line whenever it wrote nothing for a moment.  A
    line is whole once its end is there."""
    rest = ""
    with report.open(encoding="utf-8") as file:
        ended = False
        while not ended:
            try:
                child.wait(_POLL_SECONDS)
                ended = True
            except subprocess.TimeoutExpired:
                pass
            *lines, rest = (rest + file.read()).split("\n")
            yield from map(json.loads, lines)
            yield {}


def _exit_code(child: subprocess.Popen[bytes], ended: int | None) -> int:
    """The child's own, or what it said where it does not end."""
    try:
        return child.wait(_EXIT_SECONDS if ended is not None else None)
    except subprocess.TimeoutExpired:
        assert ended is not None
        child.kill()
        return ended


def _what_failed(code: int, started: str, said: str) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    during = f" during the requirement '{started}'" if started else ""
    return f"the conformance kit {how}{during}: {said or 'it said nothing'}"


def _fault_of_expression(output: Path) -> str | None:
    """What pytest found wrong with -k, if that is what it found wrong."""
    lines = output.read_text(errors="replace").splitlines()
    said = [line.removeprefix(_WRONG_EXPRESSION) for line in lines if line.startswith(_WRONG_EXPRESSION)]
    return said[0].partition(": ")[2] if said else None


def _end_of(output: Path) -> str:
    lines = output.read_text(errors="replace").splitlines()
    return "; ".join(line.strip() for line in lines[-3:] if line.strip())
