"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_NAME = re.compile(r"\b(\w+) as \1\b")
"""Every import of a stub is `name as name`, which marks it as public.  Parsing the stub would cost ten times as much."""


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], Sequence[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the package, from the imports in the stub beside `file`.

    Type checkers read the same stub.  (lazy-loader does this, too, but takes names of the package's own modules only.)"""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, names in _IMPORT.findall(stub) for name in _NAME.findall(names)}
    names = sorted(modules)

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: names, names
