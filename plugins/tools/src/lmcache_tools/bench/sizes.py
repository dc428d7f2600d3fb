"""Lists of sizes and numbers, as they are written on a command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypeVar

from lmcache_client.errors import ConfigError

Value = TypeVar("Value")

_UNITS: Final = MappingProxyType(
    {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def size_of(text: str) -> int:
    """Bytes, of `4MiB` or `4194304`.  Raises ConfigError for what is not a size above 0."""
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower(), 0) if match else 0
    if match is None or (size := int(float(match[1]) * factor)) < 1:
        raise ConfigError(f"'{text}' is not a size; expected one such as 4194304, 512KiB or 4MiB")
    return size


def number_in(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number within these.  What it returns raises ConfigError for anything else."""

    def number_of(text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit() and least <= int(word) <= most):
            raise ConfigError(f"'{text}' is not a whole number from {least} to {most}")
        return int(word)

    return number_of


def list_of(flag: str, read: Callable[[str], Value], text: str) -> tuple[Value, ...]:
    """Each value once, in the order given.  Raises ConfigError that begins with the flag."""
    try:
        return tuple(dict.fromkeys(read(part) for part in text.split(",")))
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from None
