"""Build lmcache-native and install it into the environment that runs this.

Usage: ENVIRONMENT/bin/python -m scripts.build_native

The wheel stays in `wheels` of that environment, for others of the same Python.  It needs a C++ compiler, and gets Debian's
where it may.  Without one there is a warning and no lmcache-native: the server runs in pure Python then, and the tests of
compiled code are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.pip_progress import install

FOLDER = "./libs/native"


def main() -> int:
    if not shutil.which("g++"):
        install_compiler()
    if not shutil.which("g++"):
        print("native: WARNING: no C++ compiler (g++), so lmcache-native is not built")
        print("native: to build it, install g++, remove .venv/.native, and run make setup again")
        return 0
    wheels = Path(sys.prefix) / "wheels"
    for old in wheels.glob("lmcache_native-*.whl"):
        old.unlink()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(wheels),
        FOLDER,
    ]
    if status := subprocess.run(command).returncode:
        return status
    (wheel,) = wheels.glob("lmcache_native-*.whl")
    return install("native", ["--no-deps", "--force-reinstall", str(wheel)], Path(sys.prefix) / "pip-native.log")


def install_compiler() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print("native: no C++ compiler, installing g++ with apt-get", flush=True)
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "g++"]):
        done = subprocess.run(["apt-get", "-q", *arguments], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr.strip()[-500:], file=sys.stderr)
            return


if __name__ == "__main__":
    sys.exit(main())
