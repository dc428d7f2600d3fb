"""Finds the programs that `--runtime-plugin-locations` names."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmcache_core import ConfigError

logger = logging.getLogger(__name__)

FLAG: Final = "--runtime-plugin-locations"
_SHELL: Final = "/bin/sh"


@dataclass(frozen=True, slots=True)
class ProgramFile:
    name: str
    """Its file name, numbered where several have the same."""
    path: Path
    command: tuple[str, ...]


def find_programs(locations: Sequence[str]) -> tuple[ProgramFile, ...]:
    """In the order of the locations, those of a folder by name.  Raises ConfigError for what is not there, cannot be run,
    or can be changed by every user of the machine."""
    paths: list[Path] = []
    for location in locations:
        path = _existing(location)
        found = _in_folder(path) if path.is_dir() else [path]
        for each in found:
            if each in paths:
                raise ConfigError(f"{FLAG}: {each} is given twice; leave one of them out")
            _refuse_open_to_all(each)
            paths.append(each)
    names: dict[str, int] = {}
    programs = []
    for path in paths:
        names[path.name] = count = names.get(path.name, 0) + 1
        name = path.name if count == 1 else f"{path.name}#{count}"
        programs.append(ProgramFile(name, path, _command(path)))
    return tuple(programs)


def _existing(location: str) -> Path:
    try:
        return Path(location).expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{FLAG}: {location}: {reason}; give the path of a program, or of a folder of them") from None


def _in_folder(folder: Path) -> list[Path]:
    _refuse_writable(folder, folder)
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise ConfigError(f"{FLAG}: {folder}: cannot be read: {error.strerror}") from None
    found = []
    for path in files:
        if _is_runnable(path):
            found.append(path.resolve())
        else:
            logger.info("not run, as it is no .py, no .sh and not executable file=%s", path)
    if not found:
        logger.warning("%s: there are no programs in %s", FLAG, folder)
    return found


def _is_runnable(path: Path) -> bool:
    return path.suffix in (".py", ".sh") or os.access(path, os.X_OK)


def _command(path: Path) -> tuple[str, ...]:
    match path.suffix:
        case ".py":
            return (sys.executable, "-u", str(path))
        case ".sh":
            return (_SHELL, str(path))
        case _:
            return (str(path),)


def _refuse_open_to_all(path: Path) -> None:
    if not str(path).isprintable():
        raise ConfigError(f"{FLAG}: {str(path)!r} has characters that logs and `/status` cannot show; rename it")
    if not path.is_file():
        raise ConfigError(f"{FLAG}: {path} is neither a file nor a folder")
    if not _is_runnable(path):
        raise ConfigError(f"{FLAG}: {path} is no .py, no .sh and not executable; `chmod +x` makes it so")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{FLAG}: {path} cannot be read by the user that runs the server")
    _refuse_writable(path, path)
    folder = path.parent
    if not folder.stat().st_mode & stat.S_ISVTX:  # with it, users cannot replace each other's files
        _refuse_writable(folder, path)


def _refuse_writable(path: Path, program: Path) -> None:
    if path.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{FLAG}: {program} is not run, because every user of this machine can write to {path}; `chmod o-w` it"
        )
