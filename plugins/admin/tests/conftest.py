"""Fixtures of core's tests, for what operators do to a server."""

from core.tests.app.conftest import *  # noqa: F403
from core.tests.storage.conftest import *  # noqa: F403
