"""What several files of these tests set up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugins.serde.tests.chain.heap_case import HeapCase


@pytest.fixture
def case() -> Iterator[HeapCase]:
    case = HeapCase()
    yield case
    case.close()
