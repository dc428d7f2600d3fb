"""A new folder below plugins/ is taken up by every tool of the repository, without an edit outside of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = (
    "Makefile",
    "pyproject.toml",
    "conftest.py",
    "requirements-dev.txt",
    "core/catalogue.py",
    "scripts/__init__.py",
    "scripts/docs_site.py",
    "scripts/import_rules.py",
    "tests/__init__.py",
    "tests/test_dependencies.py",
)
"""What says which folders there are.  Distributions are linked to."""
FILES: Final = {
    "README.md": "# lmcache-generated\n\nA plugin that a test has made.\n",
    "pyproject.toml": """
        [project]
        name = "lmcache-generated"
        version = "1.0"
        dependencies = ["lmcache-core>=0.1,<0.2", "pydantic>=2.9,<3"]

        [project.entry-points."lmcache.plugins.v1"]
        generated = "lmcache_generated.plugin"
        """,
    "src/lmcache_generated/__init__.py": "",
    "src/lmcache_generated/plugin.py": """
        from lmcache_core import Offer, SettingGroup, hookimpl


        @hookimpl
        def lmcache_settings():
            return [SettingGroup("Generated", "lmcache_generated.flags:Flags", "lmcache_generated.flags:apply")]


        @hookimpl
        def lmcache_subscribers():
            return [Offer("generated", "Listens", "lmcache_generated.flags:open_listener")]
        """,
    "src/lmcache_generated/flags.py": """
        from pydantic import Field

        from lmcache_core import PluginSettings


        class Flags(PluginSettings):
            generated_word: str | None = Field(None, description="The word that is listened for.")
        """,
    "tests/test_generated.py": """
        def test_it_is_collected():
            pass
        """,
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository as far as its tools look at it, with one folder more."""
    for name in COPIED:
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for project in (path for pattern in ("core", "*/*") for path in ROOT.glob(f"{pattern}/pyproject.toml")):
        folder = tmp_path / project.parent.relative_to(ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("pyproject.toml", "README.md", "src"):
            if (project.parent / part).exists():
                (folder / part).symlink_to(project.parent / part)
    for name, text in FILES.items():
        write(tmp_path, name, text)
    return tmp_path


def write(checkout: Path, name: str, text: str) -> None:
    path = checkout / "plugins/generated" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text).lstrip("\n"))


def done(checkout: Path, command: Sequence[str], code: int = 0) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MYPYPATH")
    }
    run = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_the_install_and_the_type_check_have_it(checkout: Path) -> None:
    lines = done(checkout, ["make", "--dry-run", "check"]).splitlines()
    (install,) = [line for line in lines if "--no-build-isolation" in line]
    assert " -e plugins/generated" in install
    (types,) = [line for line in lines if ".venv/bin/mypy " in line]
    assert {"plugins/generated/src", "plugins/generated/tests"} <= set(types.split())
    variables = done(checkout, ["make", "--dry-run", "--print-data-base", "check"]).splitlines()
    (path,) = [line for line in variables if line.startswith("MYPYPATH :=")]
    assert ":plugins/generated/src" in path


def test_its_tests_are_collected(checkout: Path) -> None:
    found = done(checkout, [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"])
    assert "plugins/generated/tests/test_generated.py::test_it_is_collected" in found


def test_its_imports_are_checked(checkout: Path) -> None:
    rules = [sys.executable, "-m", "scripts.import_rules"]
    assert "0 broken" in done(checkout, rules)
    write(checkout, "src/lmcache_generated/deep.py", "import lmcache_core.model.keys\n")
    write(checkout, "src/lmcache_generated/beside.py", "import lmcache_serde\n")
    said = done(checkout, rules, code=1)
    assert "lmcache_generated.deep -> lmcache_core.model.keys" in said
    assert "lmcache_generated.beside -> lmcache_serde" in said


def test_its_dependencies_are_checked(checkout: Path) -> None:
    tests = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests/test_dependencies.py"]
    tests += ["-k", "generated and (imported or declared)"]
    assert "2 passed" in done(checkout, tests)
    write(checkout, "src/lmcache_generated/more.py", "import yaml\n")
    assert "plugins/generated/pyproject.toml: imported and not declared" in done(checkout, tests, code=1)


def test_its_readme_is_a_page_of_the_site(checkout: Path) -> None:
    show = "from scripts.docs_site import pages_elsewhere; print(*pages_elsewhere(), sep='\\n')"
    assert "reference/distributions/generated.md" in done(checkout, [sys.executable, "-c", show]).splitlines()


def test_the_catalogue_of_cores_wheel_has_its_settings_and_offers(checkout: Path) -> None:
    show = "import json, runpy; print(json.dumps(runpy.run_path('core/catalogue.py')['read_catalogue']()))"
    text = json.dumps(json.loads(done(checkout, [sys.executable, "-c", show])))
    assert '"generated_word"' in text
    assert '"subscriber:generated": "lmcache-generated"' in text
