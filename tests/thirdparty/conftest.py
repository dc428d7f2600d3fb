from __future__ import annotations

import pytest

from tests.thirdparty.clean_environment import CleanEnvironment, build_wheel


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Core's wheel with the kit, and nothing of the workspace."""
    core = build_wheel("core", tmp_path_factory.mktemp("wheels"))
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    environment.pip("install", f"{core}[testing]")
    assert list(environment.plugins()) == ["builtin", "testing"]
    return environment
