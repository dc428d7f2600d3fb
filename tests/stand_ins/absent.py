"""Packages of which any name can be imported, and none called."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence


class Absent(type):
    """The type of every name: it may be looked into, compared and put into annotations.  Calling it raises RuntimeError."""

    def __getattr__(cls, name: str) -> Absent:
        return absent(f"{cls.__module__}.{cls.__name__}", name)

    def __call__(cls, *args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{cls.__module__}.{cls.__name__} was called: a stand-in for tests, which computes nothing")


def absent(module: str, name: str) -> Absent:
    """Raises AttributeError for names that Python itself asks for."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return Absent(name, (), {"__module__": module})


class Submodule(types.ModuleType):
    def __getattr__(self, name: str) -> Absent:
        return absent(self.__name__, name)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str, missing: frozenset[str]) -> None:
        self._prefix, self._missing = f"{package}.", missing

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self._prefix) or name in self._missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Submodule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def give_submodules(package: str, missing: Sequence[str] = ()) -> None:
    """Every submodule of the package can be imported from now on, but for the full names in `missing`."""
    sys.meta_path.append(_Submodules(package, frozenset(missing)))
