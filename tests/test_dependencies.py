"""Each distribution declares what it imports, and imports what it declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = {
    str(file.parent.relative_to(ROOT)): file.parent
    for pattern in ("core", "libs/*", "plugins/*", "engines/*")
    for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
}
HOSTS: Final = {
    "engines/sglang": {"sglang", "torch"},
    "engines/vllm": {"vllm", "torch", "prometheus-client"},
}
"""An engine that imports a connector is there without the connector's help, with what the engine brings."""
USED_IF_THERE: Final = {"plugins/tools": {"numpy", "torch"}}
"""Looked for with `find_spec` before the import."""

PAGES: Final = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *(each / "README.md" for each in FOLDERS.values()),
    ]
)
PUBLIC_NAMESAKE: Final = "0.6.1"
"""The oldest version of the public package that is called lmcache-vllm, too."""


class Imported(NamedTuple):
    package: str
    optional: bool
    """A `try` that expects an ImportError is around it."""


def imported(nodes: Iterable[ast.AST], optional: bool = False) -> Iterator[Imported]:
    """Third-party packages, also those that a function imports, without those for the type checker alone."""
    for node in nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from imported(node.orelse, optional)
        elif isinstance(node, ast.Try):
            expected = " ".join(ast.unparse(each.type) for each in node.handlers if each.type)
            guarded = "ImportError" in expected or "ModuleNotFoundError" in expected
            yield from imported(node.body, optional or guarded)
            yield from imported([*node.handlers, *node.orelse, *node.finalbody], optional)
        else:
            modules: Sequence[str] = ()
            if isinstance(node, ast.Import):
                modules = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            packages = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
            yield from (Imported(each, optional) for each in packages)
            yield from imported(ast.iter_child_nodes(node), optional)


@cache
def imports_of(folder: Path) -> frozenset[Imported]:
    own = {file.parent.name for file in folder.glob("src/*/__init__.py")}
    trees = (ast.parse(file.read_bytes()) for file in folder.glob("src/*/**/*.py"))
    return frozenset(each for each in imported(trees) if each.package not in own)


@cache
def distributions_of(package: str) -> frozenset[str]:
    """The distributions that may bring a package, by what is installed here."""
    return frozenset(map(canonicalize_name, _installed().get(package, [package])))


@cache
def _installed() -> dict[str, list[str]]:
    return {package: list(names) for package, names in packages_distributions().items()}


def project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


def names(requirements: Iterable[str]) -> set[str]:
    return {str(canonicalize_name(Requirement(each).name)) for each in requirements}


def dependencies(folder: Path) -> set[str]:
    return names(project(folder).get("dependencies", []))


def extras(folder: Path) -> set[str]:
    return names(each for extra in project(folder).get("optional-dependencies", {}).values() for each in extra)


def test_the_reader_of_imports_knows_which_are_needed() -> None:
    source = """
import json, alpha.part
from beta import x
from . import sibling
if TYPE_CHECKING:
    import gamma
try:
    import delta
except ImportError:
    import epsilon
def work():
    from zeta.part import y
"""
    found = set(imported([ast.parse(source)]))
    assert found == {("alpha", False), ("beta", False), ("delta", True), ("epsilon", False), ("zeta", False)}


@pytest.mark.parametrize("where", FOLDERS)
def test_what_is_imported_is_declared(where: str) -> None:
    folder = FOLDERS[where]
    declared = dependencies(folder) | extras(folder) | HOSTS.get(where, set()) | USED_IF_THERE.get(where, set())
    needed = {each.package for each in imports_of(folder) if not each.optional}
    missing = {package for package in needed if not distributions_of(package) & declared}
    assert not missing, f"{where}/pyproject.toml: imported and not declared"


@pytest.mark.parametrize("where", FOLDERS)
def test_what_is_declared_is_imported(where: str) -> None:
    folder = FOLDERS[where]
    used = {name for each in imports_of(folder) for name in distributions_of(each.package)}
    unused = dependencies(folder) - used
    assert not unused, f"{where}/pyproject.toml: declared and not imported"


def test_documented_installs_of_the_connector_take_ours() -> None:
    """A public package has the connector's name and newer versions, and pip takes the newest that is allowed."""
    commands = [line for page in PAGES for line in page.read_text().splitlines() if "pip install" in line]
    requirements = [each for line in commands for each in re.findall(r"lmcache-vllm[^\s'`\"]*", line)]
    assert requirements
    assert [each for each in requirements if Requirement(each).specifier.contains(PUBLIC_NAMESAKE)] == []


def own_closure(name: str) -> set[str]:
    """The folders of this repository that an install needs, itself included."""
    by_name = {str(canonicalize_name(project(folder)["name"])): where for where, folder in FOLDERS.items()}
    found: set[str] = set()
    ahead = [name]
    while ahead:
        where = ahead.pop()
        if where not in found:
            found.add(where)
            ahead += [by_name[each] for each in dependencies(FOLDERS[where]) if each in by_name]
    return found


def expanded(word: str) -> list[str]:
    """`a/{b,c}` as a shell reads it."""
    before, brace, rest = word.partition("{")
    return [before + each for each in rest.rstrip("}").split(",")] if brace else [word]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_a_documented_install_of_folders_names_all_of_ours_that_it_needs(page: str) -> None:
    text = re.sub(r"\\?\n(?=\S)", " ", (ROOT / page).read_text())
    for arguments in re.findall(r"pip install ([^`#&]*)", text):
        words = [each.removeprefix("./").partition("[")[0] for each in arguments.split()]
        given = {folder for word in words for folder in expanded(word)} & FOLDERS.keys()
        needed = set().union(*map(own_closure, given))
        assert needed <= given, f"pip would look for {sorted(needed - given)} in an index"
