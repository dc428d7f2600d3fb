"""A virtual environment that knows nothing of this checkout."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

from demo.environment import core_environment, quiet_environment

ROOT = Path(__file__).resolve().parents[2]


class CleanEnvironment:
    """What pip put there, and no more."""

    def __init__(self, folder: Path) -> None:
        """With a `pip` that is this environment's: to install one takes longer than all else."""
        venv.create(folder, with_pip=False)
        self._bin = folder / "bin"
        self._pip = [sys.executable, "-m", "pip", "--python", str(self._bin / "python"), "--disable-pip-version-check"]
        (self._bin / "pip").write_text(f'#!/bin/sh\nexec {shlex.join(self._pip)} "$@"\n')
        (self._bin / "pip").chmod(0o755)
        self.lmcache = self._bin / "lmcache"

    def run(self, *command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command with this environment first on the path, as if it were activated."""
        environment = {**core_environment(), "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        arguments = list(map(str, command))
        return subprocess.run(
            arguments, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=500
        )

    def shell(self, line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a line as a user would type it."""
        return self.run("bash", "-c", line, cwd=cwd)

    def pip(self, *arguments: str | Path) -> None:
        done = self.run(*self._pip, "-q", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr

    def plugins(self) -> dict[str, dict[str, str]]:
        """`lmcache plugins list`, by name."""
        done = self.run(self.lmcache, "plugins", "list", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)}


def build_wheels(into: Path, *folders: str | Path) -> list[Path]:
    """The wheels of distributions; `folders` relative to the checkout, `into` empty."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        into,
        *(ROOT / folder for folder in folders),
    ]
    subprocess.run(list(map(str, command)), check=True, cwd=into, env=quiet_environment(), timeout=300)
    return sorted(into.glob("*.whl"))
