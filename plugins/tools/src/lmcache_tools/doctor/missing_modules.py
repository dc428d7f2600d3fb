"""Modules that an offer needs and that are not installed, found without importing anything of the plugin.

Sources are searched for import statements as text, which costs a tenth of parsing them.  What seems to be missing is then
looked for in the parsed source, so that an import in a string, a `try` or an `if` does not count.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Final

from lmcache_core.app.plugins.discovery import Origin, PluginRow
from lmcache_core.app.plugins.offer_kind import OfferKind

FILES_MAX: Final = 400
"""Of one plugin."""
_IMPORT: Final = re.compile(
    r"\n(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)|import[ \t]+([^\n#;]+))"
)
_BEHIND: Final = re.compile(r";[ \t]*(?=from |import )")
_STATEMENT: Final = re.compile(r"\n[A-Za-z_@]")


def missing_modules(rows: Sequence[PluginRow]) -> list[list[str]]:
    """For each row a sentence for each module that an offer's `open` or `settings` imports unconditionally, in its own
    package's files, and that is not installed.  Commands are left out: they open nothing in a server, and the one that is run
    says itself what it needs."""
    sources = _Sources()
    return [_missing(row, sources) for row in rows]


def _missing(row: PluginRow, sources: _Sources) -> list[str]:
    missing: dict[str, str] = {}
    seen: set[str] = set()
    for offered in row.offers if row.candidate.origin is not Origin.BUILTIN else ():
        if offered.kind is OfferKind.COMMAND:
            continue
        for target in filter(None, (offered.offer.open, offered.offer.settings)):
            module, _, function = target.partition(":")
            for name, importer in sources.absent(module, function, seen):
                missing.setdefault(name, f"{offered.kind.label} '{offered.offer.name}': {importer} imports it")
    return [f"module '{name}' is not installed, and fails when it is used ({why})" for name, why in missing.items()]


class _Sources:
    """Remembers what was read: offers of one plugin share most of their modules.  One thread."""

    def __init__(self) -> None:
        self._imports: dict[tuple[str, str], dict[str, None]] = {}
        self._texts: dict[str, str] = {}
        self._files: dict[str, str | None] = {}

    def absent(self, module: str, function: str, seen: set[str]) -> Iterator[tuple[str, str]]:
        """Top-level names that cannot be found, and the module that imports each."""
        package, waiting = module.partition(".")[0], [(module, function)]
        seen.add(module)
        while waiting and len(seen) < FILES_MAX:
            importer, called = waiting.pop()
            for name in self._imported(importer, called):
                top = name.partition(".")[0]
                if top == package:
                    waiting += [(name, "")] if name not in seen else []
                    seen.add(name)
                elif not self._is_there(top) and top in _parsed_imports(self._text(importer), called):
                    yield top, importer

    def _imported(self, module: str, function: str) -> dict[str, None]:
        """The names that the module seems to import in any case, and those that its function `function` imports: modules of
        its own package, and packages of others."""
        if (module, function) not in self._imports:
            text = self._text(module)
            begin = max(text.find(f"\n{word} {function}(") for word in ("def", "async def")) if function else -1
            if begin >= 0:
                end = _STATEMENT.search(text, begin + 5)
                text += text[begin : end.start() if end else len(text)].replace("\n    ", "\n")
            self._imports[module, function] = dict.fromkeys(self._named(module, text))
        return self._imports[module, function]

    def _named(self, module: str, text: str) -> Iterator[str]:
        package = module.partition(".")[0]
        is_package = (self._file(module) or "").endswith("__init__.py")
        for dots, base, names, modules in _IMPORT.findall(_BEHIND.sub("\n", text) if ";" in text else text):
            if modules:
                yield from (part.split()[0] for part in modules.split(",") if part.strip())
                continue
            above = module.split(".")[: is_package - len(dots) or None] if dots else []
            name = ".".join([*above, *filter(None, [base])])
            yield name
            if name.partition(".")[0] == package and (self._file(name) or "").endswith("__init__.py"):
                words = (part.split()[0] for part in names.strip("()").split(",") if part.strip())
                yield from (inner for word in words if self._file(inner := f"{name}.{word}"))

    def _is_there(self, package: str) -> bool:
        """Can it be imported?"""
        return package in sys.stdlib_module_names or self._file(package) is not None

    def _file(self, module: str) -> str | None:
        """The file of a module, None where there is none.  `find_spec` of a name with a dot would import what is before the
        dot."""
        if module not in self._files:
            parent, _, name = module.rpartition(".")
            self._files[module] = _inner_file(self._file(parent), name) if parent else _top_file(module)
        return self._files[module]

    def _text(self, module: str) -> str:
        """With a line break in front; empty where there is no source that can be read."""
        if module not in self._texts:
            file = self._file(module) or ""
            try:
                with open(file, encoding="utf-8") as source:
                    self._texts[module] = f"\n{source.read()}" if file.endswith(".py") else ""
            except (OSError, ValueError):
                self._texts[module] = ""
        return self._texts[module]


def _inner_file(package: str | None, name: str) -> str | None:
    if package is None or not package.endswith("__init__.py"):
        return None
    path = package[:-11] + name
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if os.path.isfile(file)), None)


def _top_file(name: str) -> str | None:
    """The file of a top-level module; its name where it has none.  None where it cannot be imported."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return name if name in sys.modules else None
    return None if spec is None else spec.origin or name


def _parsed_imports(text: str, function: str) -> set[str]:
    """The top-level names that a module imports in any case, and those that its function `function` imports."""
    import ast  # here, because hardly a listing needs it

    try:
        body = ast.parse(text).body
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
