"""What setting plugins up costs, and what is logged about it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version

from core.tests.app.test_cli import Environment, lmcache
from lmcache_core.app.plugins import discovery
from lmcache_core.app.plugins.discovery import SLOW_SETUP_MS, PluginRow
from lmcache_core.app.plugins.loading import load_plugins

Install = Callable[..., Path]
OFFERING = "from lmcache_core import Offer, hookimpl\n"
SLOW_IMPORT = OFFERING + "import time\ntime.sleep(0.15)\n@hookimpl\ndef lmcache_l2_adapters(): return []\n"
SLOW_HOOK = OFFERING + "import time\n@hookimpl\ndef lmcache_l2_adapters(): time.sleep(0.15); return []\n"


def row(name: str) -> PluginRow:
    (found,) = [each for each in load_plugins().rows() if each.candidate.name == name]
    return found


@pytest.mark.parametrize("source", [SLOW_IMPORT, SLOW_HOOK, SLOW_IMPORT.replace("@hookimpl", "1 / 0\n@hookimpl")])
def test_a_plugin_that_is_slow_to_set_up_is_measured_and_named(install: Install, source: str) -> None:
    install("acme", source)
    plugins = load_plugins()
    (found,) = [each for each in plugins.rows() if each.candidate.name == "acme"]
    assert found.setup_ms is not None
    assert found.setup_ms >= 150 > SLOW_SETUP_MS
    (line,) = [line for line in plugins.warnings if "to set up" in line]
    assert line.startswith(f"plugin 'acme' (acme-dist 1.0) took {found.setup_ms:.0f} ms to set up, more than 100 ms")


def test_what_was_not_imported_has_no_time(install: Install) -> None:
    install("acme", requires="lmcache-core>=99")
    assert row("acme").setup_ms is None
    assert row("acme").slowness is None


def test_the_time_is_in_the_list(install: Install, child_environment: Environment) -> None:
    install("acme", SLOW_HOOK)
    (record,) = [
        each
        for each in json.loads(lmcache(child_environment, "plugins", "list", "--json").stdout)
        if each["name"] == "acme"
    ]
    assert record["setup_ms"] >= 150
    text = lmcache(child_environment, "plugins", "list", "--verbose").stdout
    assert "set up in " in text
    assert "ms to set up, more than 100 ms, at every start" in lmcache(child_environment, "plugins", "list").stdout


def test_an_error_is_its_first_line_and_all_of_it_with_verbose(
    install: Install, child_environment: Environment
) -> None:
    install("acme", "def deep():\n    raise RuntimeError('first line\\nsecond line')\ndeep()\n")
    short = lmcache(child_environment, "plugins", "list").stdout
    assert "    RuntimeError: first line\n" in short
    assert "second line" not in short
    whole = lmcache(child_environment, "plugins", "list", "--verbose").stdout
    assert "second line" in whole
    assert "in deep" in whole
    assert "Traceback (most recent call last):" in whole


HEAVY = ("pydantic", "torch", "litestar", "uvicorn", "opentelemetry", "yaml", "zmq", "boto3", "msgspec", "packaging")


@pytest.mark.parametrize("command", [["plugins", "list"], ["plugins", "list", "--json"], ["--help"]])
def test_listing_imports_no_library_and_no_settings_model(
    install: Install, child_environment: Environment, command: list[str]
) -> None:
    """Of every plugin that is installed here, too; a requirement in the usual form needs no parser."""
    source = OFFERING + "@hookimpl\ndef lmcache_l2_adapters():\n"
    folder = install("acme", source + "    return [Offer('acme', 's', 'acme_work:o', 'acme_work:S')]\n").parent
    (folder / "acme_work.py").write_text("raise AssertionError('imported')\n")
    script = (
        f"import sys; from lmcache_core.app.cli import main; code = main({command});"
        f"names = [name for name in sys.modules if name.partition('.')[0] in {HEAVY}];"
        "models = [name for name in sys.modules if name.startswith('lmcache_') and name.endswith(('config', 'settings'))];"
        "print(names, models, 'acme_work' in sys.modules, code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=child_environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] [] False 0"


# LMCACHE_TRACE_HOOKS


def test_each_hook_call_is_traced(install: Install, child_environment: Environment) -> None:
    install("acme")
    install("zeta", OFFERING + "@hookimpl\ndef lmcache_subscribers(): 1 / 0\n")
    done = lmcache({**child_environment, "LMCACHE_TRACE_HOOKS": "1"}, "plugins", "list")
    calls = [line for line in done.stderr.splitlines() if line.startswith("lmcache: hook call ")]
    assert any("plugin=builtin hook=lmcache_eviction_policies ms=" in line for line in calls)
    (acme,) = [line for line in calls if "plugin=acme" in line]
    assert float(acme.partition("hook=lmcache_l2_adapters ms=")[2]) >= 0
    (zeta,) = [line for line in calls if "plugin=zeta" in line]
    assert zeta.endswith("raised=ZeroDivisionError")
    assert "hook call" not in lmcache(child_environment, "plugins", "list").stderr
    assert "hook call" not in lmcache({**child_environment, "LMCACHE_TRACE_HOOKS": "0"}, "plugins", "list").stderr


# the short way around the parser of requirements

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
BOUNDS = st.lists(st.tuples(st.sampled_from([">=", "<"]), NUMBERS).map("".join), min_size=1, max_size=3).map(",".join)


@given(bounds=BOUNDS, version=NUMBERS)
def test_the_short_way_says_what_the_parser_says(bounds: str, version: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmcache_core.__version__", version)
        met = discovery._is_plainly_met(f"lmcache-core{bounds}")
    assert met == Requirement(f"lmcache-core{bounds}").specifier.contains(Version(version), prereleases=True)


@pytest.mark.parametrize("text", ["lmcache-core", "lmcache-core==0.1", "lmcache-core>=0.1; python_version>'3'", "x>=a"])
def test_the_short_way_is_silent_about_the_rest(text: str) -> None:
    assert not discovery._is_plainly_met(text)


def test_what_only_an_extra_requires_does_not_apply(install: Install) -> None:
    install("acme", requires="lmcache-devkit>=99; extra == 'testing'")
    assert row("acme").error is None
