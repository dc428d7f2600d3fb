"""How large each distribution is and what it brings, as a page: `python -m scripts.size > docs/internals/size.md`.

Lines are those of the Python files of its source, blank ones and comments included.  What an install brings is counted from
the dependencies that are declared here and from the metadata of what is installed.  The cost of an import is the processor
time of a child that imports every public name, beyond that of one that imports nothing: the least of several.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
RUNS: Final = 5
HEAD: Final = """# Size

Written by `python -m scripts.size > docs/internals/size.md`.

* Lines are those of Python source, with blank lines and comments and without tests.
* "Brings" counts all distributions that `pip install` adds beside the one named, on the machine that wrote this page. vLLM
  and what it brings are not counted for the connector.
* "Import" is the processor time for all public names, and for the module that a server imports of a plugin, beyond that of
  an empty program (`-`: it cannot be imported here).

`tests/test_size.py` limits core, which has {lines:,} lines in {files} files, none longer than {longest} lines. The aim is
at most {aim_lines:,} lines and {aim_files} files.

| distribution | files | lines | longest file | brings | import, ms |
|---|---:|---:|---:|---:|---:|
"""
AIM_LINES: Final = 22_000
AIM_FILES: Final = 260
LONGEST: Final = 400
"""Lines of a file of core."""


class Size(NamedTuple):
    """Of the Python source of one distribution."""

    files: int
    lines: int
    longest: int


def folders() -> dict[str, Path]:
    """The folder of each distribution of this repository, by the distribution's name."""
    files = [
        file
        for pattern in ("core", "libs/*", "plugins/*", "engines/*")
        for file in ROOT.glob(f"{pattern}/pyproject.toml")
    ]
    return {project(file.parent)["name"]: file.parent for file in sorted(files)}


def project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


def size(folder: Path) -> Size:
    lengths = [len(file.read_bytes().splitlines()) for file in folder.glob("src/**/*.py")]
    return Size(len(lengths), sum(lengths), max(lengths))


def brings(name: str, own: Mapping[str, Path]) -> set[str]:
    """Names of all distributions that an install adds beside the one named.

    One that is not installed here counts without what it would bring."""
    found: set[tuple[str, str]] = set()
    ahead = [(str(canonicalize_name(name)), "")]
    while ahead:
        each = ahead.pop()
        if each in found:
            continue
        found.add(each)
        for need in _requirements(each[0], own):
            if need.marker is None or need.marker.evaluate({"extra": each[1]}):
                ahead += [(str(canonicalize_name(need.name)), extra) for extra in ("", *need.extras)]
    return {each for each, _ in found} - {canonicalize_name(name)}


def _requirements(name: str, own: Mapping[str, Path]) -> Iterable[Requirement]:
    declared: Iterable[str]
    if name in own:  # not from the metadata, which is that of the last install
        declared = project(own[name]).get("dependencies", ())
    else:
        try:
            declared = requires(name) or ()
        except PackageNotFoundError:
            declared = ()
    return map(Requirement, declared)


def import_milliseconds(folder: Path) -> float | None:
    """Processor time for all public names, and for the module that a server imports; None where that fails here."""
    about = project(folder)
    program = f"from {about['name'].replace('-', '_')} import *"
    for module in about.get("entry-points", {}).get("lmcache.plugins.v1", {}).values():
        program += f"; import {module}"
    with tempfile.TemporaryDirectory() as bytecode:
        bare = _least("pass", bytecode)
        whole = _least(program, bytecode)
    return None if whole is None or bare is None else max(0.0, whole - bare)


def _least(program: str, bytecode: str) -> float | None:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    costs = []
    for _ in range(RUNS + 1):  # the first one compiles
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL, check=False, timeout=120
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return None
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs[1:]) * 1000


def page() -> str:
    own = folders()
    core = size(own["lmcache-core"])
    lines = [HEAD.format(lines=core.lines, files=core.files, longest=LONGEST, aim_lines=AIM_LINES, aim_files=AIM_FILES)]
    for name, folder in own.items():
        about = size(folder)
        cost = import_milliseconds(folder)
        shown = "-" if cost is None else f"{cost:.0f}"
        counts = f"{about.files} | {about.lines:,} | {about.longest} | {len(brings(name, own))} | {shown}"
        lines.append(f"| {name} | {counts} |\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
