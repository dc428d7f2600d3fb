"""What docs/operate says of the admin API is so."""

from __future__ import annotations

import pytest

from scripts import http_api
from tests.docs.markdown import DOCS


@pytest.mark.parametrize("name", ["openapi.json", "http-api.md"])
def test_a_generated_file_is_what_the_generator_writes(name: str) -> None:
    path = DOCS / "reference" / name
    assert path.read_text() == http_api.documents()[path], "run: python -m scripts.http_api"
