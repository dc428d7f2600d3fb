"""Modules that an offer needs and that are not installed, found without importing anything of the plugin.

Sources are searched for import statements as text, which costs a tenth of parsing them; what seems to be missing is then
looked for in the parsed source, so that an import in a string, a `try` or an `if` is not taken for one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec, resolve_name
from typing import Final, NamedTuple

from lmcache_core.app.plugins.discovery import Origin, PluginRow
from lmcache_core.app.plugins.offer_kind import OfferKind

FILES_MAX: Final = 400
"""Of one plugin."""
_NAMES: Final = r"(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)|import[ \t]+([^\n#;]+))"
_IMPORT: Final = re.compile(_NAMES)
_BEHIND: Final = re.compile(rf";[ \t]*(?={_NAMES})")
_STATEMENT: Final = re.compile(r"\n[A-Za-z_@]")
_ALIAS: Final = re.compile(r"[\w.]+(?=[ \t]*(?:,|$|\n|\)|[ \t]as[ \t]))")


def missing_modules(rows: Sequence[PluginRow]) -> list[list[str]]:
    """For each row a sentence for each module that an offer's `open` or `settings` imports unconditionally, in its own
    package's files, and that is not installed.  Commands are left out: they open nothing in a server, and the one that is run
    says itself what it needs."""
    sources = _Sources({}, {}, {}, {})
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
    """Top-level names that cannot be found, and the module that imports each."""
    package, waiting = module.partition(".")[0], [(module, function)]
    seen.add(module)
    while waiting and len(seen) < FILES_MAX:
        importer, called = waiting.pop()
        for name in sources.imports(importer, called):
            top = name.partition(".")[0]
            if top == package:
                waiting += [(name, "")] if name not in seen else []
                seen.add(name)
            elif not sources.has(top) and top in _parsed_imports(importer, called, sources):
                yield top, importer


class _Sources(NamedTuple):
    """What was read already: offers of one plugin share most of their modules."""

    read: dict[tuple[str, str], list[str]]
    there: dict[str, bool]
    files: dict[str, str | None]
    folders: dict[str, frozenset[str]]

    def imports(self, module: str, function: str) -> list[str]:
        """The names that the module seems to import in any case, and those that its function `function` imports."""
        if (module, function) not in self.read:
            self.read[module, function] = list(dict.fromkeys(self._found(module, function)))
        return self.read[module, function]

    def has(self, package: str) -> bool:
        """Can it be imported?"""
        if package not in self.there:
            self.there[package] = package in sys.stdlib_module_names or _top_file(package) is not None
        return self.there[package]

    def file(self, module: str) -> str | None:
        """The source of a module.  `find_spec` of a name with a dot would import what is before the dot."""
        if module not in self.files:
            parent, _, name = module.rpartition(".")
            self.files[module] = self._inner_file(self.file(parent), name) if parent else _top_file(module)
        return self.files[module]

    def _inner_file(self, package: str | None, name: str) -> str | None:
        if package is None or not package.endswith("__init__.py"):
            return None
        folder = package[:-11]
        if folder not in self.folders:
            self.folders[folder] = frozenset(os.listdir(folder))
        if f"{name}.py" in self.folders[folder]:
            return f"{folder}{name}.py"
        inner = f"{folder}{name}/__init__.py"
        return inner if name in self.folders[folder] and os.path.isfile(inner) else None

    def text(self, module: str) -> str:
        """Empty where there is no source that can be read."""
        file = self.file(module)
        try:
            with open(file or "", encoding="utf-8") as source:
                return source.read() if file and file.endswith(".py") else ""
        except (OSError, ValueError):
            return ""

    def _found(self, module: str, function: str) -> Iterator[str]:
        text, parent = self.text(module), _parent(module, self.file(module))
        yield from self._imported(text, "\n", parent)
        begin = max(text.find(f"\n{word} {function}(") for word in ("def", "async def")) if function else -1
        if begin >= 0:
            end = _STATEMENT.search(text, begin + 5)
            yield from self._imported(text[begin : end.start() if end else len(text)], "\n    ", parent)

    def _imported(self, text: str, begin: str, parent: str) -> Iterator[str]:
        """What statements import that follow `begin`, or a semicolon."""
        lines = f"\n{text}"
        places = [at + len(begin) for word in ("from ", "import ") for at in _places(lines, begin + word)]
        if ";" in text:
            places += [found.end() for found in _BEHIND.finditer(lines)]
        for place in sorted(places):
            if found := _IMPORT.match(lines, place):
                yield from self._named(found, parent)

    def _named(self, found: re.Match[str], parent: str) -> Iterator[str]:
        base, names, modules = found.groups()
        if modules is not None:
            yield from _ALIAS.findall(modules)
            return
        name = _absolute(base, parent)
        yield name
        if (self.file(name) or "").endswith("__init__.py"):  # else its names are no modules
            yield from (f"{name}.{each}" for each in _ALIAS.findall(names) if self.file(f"{name}.{each}"))


def _parsed_imports(module: str, function: str, sources: _Sources) -> set[str]:
    """The top-level names that a module imports in any case, and those that its function `function` imports."""
    import ast  # here, because hardly a listing needs it

    try:
        body = ast.parse(sources.text(module)).body
    except (SyntaxError, ValueError):
        return set()
    inner = [
        each for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == function
    ]
    found: set[str] = set()
    for each in (*body, *(statement for called in inner for statement in called.body)):
        if isinstance(each, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            found.add(each.module.partition(".")[0])
    return found


def _places(text: str, part: str) -> Iterator[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _absolute(name: str, parent: str) -> str:
    try:
        return resolve_name(name, parent)
    except ImportError:  # more dots than there are packages
        return name


def _parent(module: str, file: str | None) -> str:
    return module if file is not None and file.endswith("__init__.py") else module.rpartition(".")[0]


def _top_file(name: str) -> str | None:
    """The file of a top-level module; its name where it has none.  None where it cannot be imported."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return name if name in sys.modules else None
    return None if spec is None else spec.origin or name
