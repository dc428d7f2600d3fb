"""Finds what a plugin's offers would fail to import when they are opened, without importing anything of them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Final, NamedTuple

from lmcache_core.app.plugins.discovery import Origin
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_row import PluginRow

FILES_MAX: Final = 400
"""Of one plugin."""
_DEFINITION: Final = re.compile(rb"^(?:@|def |class |async )", re.MULTILINE)
_IMPORT: Final = re.compile(rb"^(?:import|from)\s|;\s*(?:import|from)\s", re.MULTILINE)


def missing_modules(rows: Sequence[PluginRow]) -> list[list[str]]:
    """For each row a sentence for each module that an offer's `open` or `settings` imports unconditionally, in its own
    package's files, and that is not installed.  Reads the sources; what is imported within a `try` or an `if` is optional.
    Commands are left out: they open nothing in a server, and the one that is run says itself what it needs."""
    sources = _Sources({}, {})
    return [_missing(row, sources) for row in rows]


def _missing(row: PluginRow, sources: _Sources) -> list[str]:
    missing: dict[str, str] = {}
    seen: set[str] = set()
    for offered in row.offers if row.candidate.origin is not Origin.BUILTIN else ():
        if offered.kind is OfferKind.COMMAND:
            continue
        for target in filter(None, (offered.offer.open, offered.offer.settings)):
            module, _, function = target.partition(":")
            for name, importer in _absent(module, function, seen, sources):
                missing.setdefault(name, f"{offered.kind.label} '{offered.offer.name}': {importer} imports it")
    return [
        f"module '{name}' is not installed, and cannot be had when it is used ({why})" for name, why in missing.items()
    ]


def _absent(module: str, function: str, seen: set[str], sources: _Sources) -> Iterator[tuple[str, str]]:
    """Top-level names that cannot be found, and who imports each."""
    package, waiting = module.partition(".")[0], [module]
    seen.add(module)
    while waiting and len(seen) < FILES_MAX:
        importer = waiting.pop()
        for name in sources.imports(importer, function if importer == module else ""):
            top = name.partition(".")[0]
            if top == package:
                waiting += [name] if name not in seen else []
                seen.add(name)
            elif not sources.has(top):
                yield top, importer


class _Sources(NamedTuple):
    """What was read already: offers of one plugin share most of their modules."""

    read: dict[tuple[str, str], list[str]]
    there: dict[str, bool]

    def imports(self, module: str, function: str) -> list[str]:
        """The names that the module imports in any case, and those that its function `function` imports."""
        if (module, function) not in self.read:
            self.read[module, function] = list(_imports(module, function))
        return self.read[module, function]

    def has(self, package: str) -> bool:
        """Whether it can be imported."""
        if package not in self.there:
            self.there[package] = package in sys.stdlib_module_names or _is_there(package)
        return self.there[package]


def _imports(module: str, function: str) -> Iterator[str]:
    source = _source(module)
    if source is None:
        return
    try:
        text = source.read_bytes()
        tree = _head(text) if not function else None
        tree = tree or ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    parent = module if source.name == "__init__.py" else module.rpartition(".")[0]
    yield from _named(tree.body, parent)
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == function:
            yield from _named(each.body, parent)


def _head(text: bytes) -> ast.Module | None:
    """The part before the first function or class, which is parsed several times as fast; None where imports follow."""
    first = _DEFINITION.search(text)
    if first is None or _IMPORT.search(text, first.end()):
        return None
    try:
        return ast.parse(text[: first.start()])
    except (SyntaxError, ValueError):  # that line was part of a string
        return None


def _named(statements: Sequence[ast.stmt], parent: str) -> Iterator[str]:
    for each in statements:
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            base = f"{'.' * each.level}{each.module or ''}"
            name = resolve_name(base, parent) if each.level else base
            yield name
            yield from (f"{name}.{alias.name}" for alias in each.names)  # one that is no module has no source


def _source(module: str) -> Path | None:
    """The file of a module.  `find_spec` of a name with a dot would import what stands before the dot."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    path = Path(spec.origin) if spec is not None and spec.origin else None
    for part in rest:
        if path is None or path.name != "__init__.py":
            return None
        places = (path.parent / part / "__init__.py", path.parent / f"{part}.py")
        path = next((place for place in places if place.is_file()), None)
    return path if path is not None and path.suffix == ".py" else None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return name in sys.modules
