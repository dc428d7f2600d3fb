from __future__ import annotations

from core.tests.app.conftest import bare_environment, child_environment, install, only_core

__all__ = ["bare_environment", "child_environment", "install", "only_core"]
