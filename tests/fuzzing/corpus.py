"""The kept inputs of each fuzz target: one file, one input a line, in base64.

    .venv/bin/python -m tests.fuzzing.corpus TARGET FILE_OR_FOLDER ...

adds inputs, a failing one for example, or what a run of a fuzzer has left after its `-merge=1`.
"""

from __future__ import annotations

import argparse
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"


def load(target: str) -> list[bytes]:
    """Empty for a target without a file."""
    path = FOLDER / f"{target}.txt"
    return [b64decode(line, validate=True) for line in path.read_text().split()] if path.is_file() else []


def unpack(target: str, folder: Path) -> Path:
    """Each input as a file of its own, as fuzzers want it.  Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(load(target)):
        (folder / str(number)).write_bytes(data)
    return folder


def add(target: str, paths: list[Path]) -> int:
    """Returns how many were new."""
    known = set(load(target))
    files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
    new = {file.read_bytes() for file in files} - known - {b""}
    lines = sorted(b64encode(data).decode() for data in known | new)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text(
        "".join(f"{line}\n" for line in sorted(lines, key=lambda line: (len(line), line)))
    )
    return len(new)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("paths", nargs="+", type=Path)
    asked = parser.parse_args()
    print(f"{add(asked.target, asked.paths)} new inputs")
