"""Programs of the operating system that some tests run: Prometheus, a browser, fio, and what mounts FUSE file systems.

Usage: ENVIRONMENT/bin/python -m scripts.system_packages

They are installed with Debian's apt-get where that may be done.  Without them there is a warning, and their tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

PROGRAMS: Final = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "chromium": "chromium",
    "fio": "fio",
    "fusermount3": "fuse3",
}
"""Packages by the program that is looked for."""


def main() -> int:
    if missing := packages():
        install(missing)
    for program, package in PROGRAMS.items():
        if not shutil.which(program):
            print(f"system: WARNING: no {program}, so its tests are skipped; install the package {package} for them")
    return 0


def packages() -> list[str]:
    """Those whose program is not there."""
    return sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})


def install(names: list[str]) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"system: installing {' and '.join(names)} with apt-get", flush=True)
    # a package's service must not be started: tests start what they need
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *names]):
        done = subprocess.run(
            ["apt-get", "-q", *arguments], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            print(done.stderr.strip()[-500:], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
