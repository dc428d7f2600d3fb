"""A harness of an adapter, closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.controllers.adapter_harness import AdapterHarness


@pytest.fixture
def harness() -> Iterator[AdapterHarness]:
    harness = AdapterHarness()
    yield harness
    harness.adapter.close(0)
    harness.inbox.close()
