"""What the tests of the storage verbs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.storage.storage_harness import StorageHarness, open_storage


@pytest.fixture
def harness() -> Iterator[StorageHarness]:
    with open_storage(StorageHarness()) as harness:
        yield harness
