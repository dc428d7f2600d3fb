"""No number is taken that no machine can have."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from lmcache_core.app.settings import ServerSettings


def numbers() -> list[str]:
    """Settings that take a number."""
    found = []
    for name, field in ServerSettings.model_fields.items():
        annotation: Any = field.annotation
        adapter = TypeAdapter(annotation)
        try:
            adapter.validate_python(1, strict=True)
        except ValidationError:
            continue
        if annotation is not bool and not isinstance(field.default, bool):
            found.append(name)
    return found


def is_taken(name: str, value: float) -> bool:
    try:
        ServerSettings.model_validate({name: value})
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", numbers())
@pytest.mark.parametrize("value", [10**20, 1e300, -1, float("inf"), float("nan")])
def test_a_number_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    assert not is_taken(name, value)


def test_there_are_numbers() -> None:
    assert {"chunk_size", "l1_size_gb", "max_workers", "drain_seconds"} <= set(numbers())


@pytest.mark.parametrize("value", [1e-9, 0])
def test_an_l1_without_room_for_anything_is_refused(value: float) -> None:
    assert not is_taken("l1_size_gb", value)
    assert is_taken("l1_size_gb", 0.001)
