from __future__ import annotations

import pytest

from tests.thirdparty.clean_environment import CleanEnvironment, build_wheels


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Wheels of the devkit, of the tools and of what they need of this project, and nothing of the workspace."""
    folders = ("libs/client", "libs/http", "core", "libs/l2_adapter", "plugins/devkit", "plugins/tools")
    wheels = build_wheels(tmp_path_factory.mktemp("wheels"), *folders)
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean"))
    environment.pip("install", *wheels)
    assert list(environment.plugins()) == ["builtin", "devkit", "tools"]
    return environment
