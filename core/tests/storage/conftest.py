"""What the tests of the storage verbs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.tests.storage.house import House, open_house


@pytest.fixture
def house() -> Iterator[House]:
    with open_house(House()) as house:
        yield house
