"""A dependency that is missing is said before anything is opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core.tests.app.plugin_rows import Install, row
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.doctor.missing_modules import missing_modules

OFFER = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_l2_adapters():
        return [Offer("acme", "for tests", open="acme_plugin_parts.adapter:open_it")]
    """
ADAPTER = """
from typing import TYPE_CHECKING
from .inner import thing
if TYPE_CHECKING:
    import only_for_types
try:
    import only_if_there
except ImportError:
    only_if_there = None

def open_it(settings, context):
    import json, not_there_lazily
    from lmcache_core import L2Adapter

def other():
    import never_called
"""


@pytest.fixture
def acme(install: Install) -> None:
    parts = install("acme", OFFER).parent / "acme_plugin_parts"
    parts.mkdir()
    (parts / "__init__.py").write_text("")
    (parts / "adapter.py").write_text(ADAPTER)
    (parts / "inner.py").write_text("import not_there_either.sub\nfrom . import adapter\nthing = 1\n")


@pytest.mark.usefixtures("acme")
def test_what_is_imported_in_any_case_and_is_not_there_is_named() -> None:
    found = row(load_plugins(), "acme")
    (lines,) = missing_modules([found])
    assert [line.split("'")[1] for line in lines] == ["not_there_lazily", "not_there_either"]
    assert "acme_plugin_parts.adapter imports it" in lines[0]
    assert "acme_plugin_parts.inner imports it" in lines[1]
    assert not [name for name in sys.modules if name.startswith("acme_plugin_parts.")], "nothing of it was imported"


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("import absent_a\ndef work():\n    import absent_b\n", ["absent_a"]),
        ("def work():\n    pass\nimport absent_a\n", ["absent_a"]),
        ("class A:\n    pass\nA(); from absent_a import b\n", ["absent_a"]),
        ('"""\ndef example():\n"""\nimport absent_a\n', ["absent_a"]),
        ('"""\ndef example():\n"""\nA = 1; import absent_a\n', ["absent_a"]),
        ("import absent_a\nTEXT = '''\nimport absent_b\nclass A:\n'''\n", ["absent_a"]),
        ("def broken(\n", []),
    ],
)
@pytest.mark.usefixtures("acme")
def test_imports_are_found_wherever_a_module_has_them(tmp_path: Path, text: str, absent: list[str]) -> None:
    (tmp_path / "acme_plugin_parts" / "inner.py").write_text(text)
    (lines,) = missing_modules([row(load_plugins(), "acme")])
    assert [line.split("'")[1] for line in lines] == ["not_there_lazily", *absent]


def test_what_a_command_needs_is_said_by_the_command(install: Install) -> None:
    parts = install("acme", OFFER.replace("lmcache_l2_adapters", "lmcache_commands")).parent / "acme_plugin_parts"
    parts.mkdir()
    (parts / "__init__.py").write_text("")
    (parts / "adapter.py").write_text("import not_there")
    assert missing_modules([row(load_plugins(), "acme")]) == [[]]


def test_our_own_lack_nothing_that_is_installed() -> None:
    named = {line.split("'")[1] for lines in missing_modules(load_plugins().rows()) for line in lines}
    assert named <= {"cuda", "kvikio", "mooncake", "nixl", "torch"}, named
