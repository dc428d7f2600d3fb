"""Reads answers of servers that may be older or newer than this program: what is not there is none, not an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Loose:
    """A value of a JSON document, or nothing."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __truediv__(self, name: str) -> Loose:
        """What an object has under this name: `status / "l1" / "free"`."""
        return Loose(self.value.get(name) if isinstance(self.value, dict) else None)

    def __iter__(self) -> Iterator[Loose]:
        """The elements of a list, or nothing."""
        return iter([Loose(each) for each in self.value] if isinstance(self.value, list) else ())

    def items(self) -> list[tuple[str, Loose]]:
        """The names and values of an object, or nothing."""
        return [(str(name), Loose(value)) for name, value in self.value.items()] if isinstance(self.value, dict) else []

    @property
    def known(self) -> bool:
        return self.value is not None

    def number(self) -> float | None:
        return self.value if isinstance(self.value, int | float) and not isinstance(self.value, bool) else None

    def count(self) -> float:
        """The number, or 0."""
        return self.number() or 0

    def text(self) -> str:
        """Empty for nothing."""
        return "" if self.value is None else str(self.value)

    def total(self) -> float:
        """The sum of an object's numbers, or the number."""
        return sum(value.count() for _, value in self.items()) if isinstance(self.value, dict) else self.count()
