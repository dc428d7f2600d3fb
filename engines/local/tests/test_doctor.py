"""`lmcache doctor` says when an environment has the public package, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.offer_checks import offer_checks
from lmcache_tools.doctor.probe_result import Level, ProbeResult


def found() -> list[ProbeResult]:
    plugins = load_plugins(["engine"])
    context = CheckContext(read_settings({}, plugins), plugins)
    return [each for each in offer_checks(context) if each.probe == "lmcache migrate-config"]


def test_an_environment_without_the_public_package_is_not_spoken_of() -> None:
    assert found() == []


def test_the_public_package_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "lmcache-0.3.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.3.9\n")
    (tmp_path / "lmcache").mkdir()
    (tmp_path / "lmcache" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (result,) = found()
    assert result.level is Level.WARN
    assert "public package, lmcache 0.3.9" in result.text
    assert "pip uninstall lmcache" in result.remedy
