"""Run pip for one environment, and say every few seconds how far it is.

Usage: ENVIRONMENT/bin/python -m scripts.pip_progress LABEL PIP_ARGUMENT...

pip's own output (several lines a package, and silence while it unpacks) goes to a log; its end is shown when pip fails.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

REPORT_SECONDS = 5.0
TAIL_LINES = 25


class Progress:
    """What pip is doing, read off its output.  Written by one thread and read by another; single fields only."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = time.monotonic()
        self._collected = 0
        self._current = "starting"

    def see(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word in ("Collecting", "Processing"):
            self._collected += 1
            self._current = f"{self._collected} packages looked up, now {Path(rest.split(' ')[0]).name}"
        elif word == "Downloading" and "(" in rest:
            name, _, size = rest.rpartition("(")
            self._current = f"downloading {name.strip().rsplit('/', 1)[-1]} ({size}"
        elif line.startswith("Installing collected"):
            self._current = f"unpacking {self._collected} packages"

    def report(self, text: str | None = None) -> None:
        print(f"[{time.monotonic() - self._begin:4.0f} s] {self._label}: {text or self._current}", flush=True)


def install(label: str, arguments: list[str], log_path: Path) -> int:
    """`pip install` into the environment of the running interpreter; returns pip's exit status."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    progress = Progress(label)
    finished = threading.Event()

    def report_now_and_then() -> None:
        while not finished.wait(REPORT_SECONDS):
            progress.report()

    progress.report("pip install " + " ".join(arguments))
    threading.Thread(target=report_now_and_then, daemon=True).start()
    with (
        log_path.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            progress.see(line)
    finished.set()
    if pip.returncode == 0:
        progress.report("done")
    else:
        tail = log_path.read_text().splitlines()[-TAIL_LINES:]
        progress.report(f"pip failed with status {pip.returncode}; the end of {log_path}:\n" + "\n".join(tail))
    return pip.returncode


def environment_log() -> Path:
    """Next to what pip installs, so that removing the environment removes it too."""
    return Path(sys.prefix) / "pip.log"


if __name__ == "__main__":
    sys.exit(install(sys.argv[1], sys.argv[2:], environment_log()))
