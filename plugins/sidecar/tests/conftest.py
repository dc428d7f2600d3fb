"""A whole server in this process, and one without plugins."""

from core.tests.app.conftest import only_core
from core.tests.server.conftest import start_server

__all__ = ["only_core", "start_server"]
