"""Equations of scrapes say what was wrong as those of tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.observability.scrapes")
