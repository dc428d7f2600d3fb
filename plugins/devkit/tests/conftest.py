from __future__ import annotations

from core.tests.app.conftest import bare_environment, child_environment, install, only_core
from core.tests.conftest import kernels

__all__ = ["bare_environment", "child_environment", "install", "kernels", "only_core"]
