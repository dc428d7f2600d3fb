from __future__ import annotations

import subprocess
import sys

import pytest

import lmcache_devkit


def test_every_public_name_can_be_imported() -> None:
    kit = lmcache_devkit
    assert len(kit.__all__) > 20
    for name in kit.__all__:
        assert getattr(kit, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'L3AdapterSuite'"):
        getattr(kit, "L3AdapterSuite")  # noqa: B009 (mypy knows that there is none)


@pytest.mark.parametrize("module", ["lmcache_devkit", "lmcache_devkit.plugin"])
def test_the_import_loads_no_library(module: str) -> None:
    assert loaded_by(module, "{'pytest', 'hypothesis', 'pydantic', 'zmq'}") == "[]"


@pytest.mark.parametrize("module", ["mock_adapter", "fault_inject_opening", "fault_inject_settings"])
def test_what_a_server_opens_needs_no_library_of_tests(module: str) -> None:
    """A server opens them, and pays for nothing that only checks need."""
    assert loaded_by(f"lmcache_devkit.{module}", "{'pytest', 'hypothesis'}") == "[]"


def test_the_pytest_plugin_loads_nothing_but_the_time_limit() -> None:
    found = loaded_by("lmcache_devkit.pytest_plugin", "{m for m in sys.modules if m.startswith('lmcache')}")
    kit, client = "lmcache_devkit", "lmcache_client"
    assert found == str([client, f"{client}.lazy_names", kit, f"{kit}.check_limit", f"{kit}.pytest_plugin"])


def loaded_by(module: str, asked: str) -> str:
    code = f"import sys, {module}; print(sorted({asked} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()
