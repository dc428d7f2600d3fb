"""Sizes of a cache, as a user writes them: `5%`, `5000`, `16GiB`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmcache_core import ConfigError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wish:
    """A capacity before the trace is known: `amount` of `unit`, which is "%", "blocks" or "bytes"."""

    text: str
    amount: float
    unit: str


@dataclass(frozen=True, slots=True)
class Capacity:
    text: str
    """As it was asked for."""
    blocks: int


def parse_wishes(text: str) -> tuple[Wish, ...]:
    """A list with commas.  Raises ConfigError for a text that is not a size."""
    return tuple(_wish(part.strip()) for part in text.split(","))


def parse_bytes(text: str) -> int:
    """Raises ConfigError for what is not one byte or more."""
    amount, unit = _split(text)
    if unit not in _UNITS or int(amount * _UNITS[unit]) < 1:
        raise ConfigError(f"'{text}' is not a size; expected one such as 2097152, 512KiB or 2MiB")
    return int(amount * _UNITS[unit])


def capacities(wishes: Sequence[Wish], distinct: int, block_bytes: int | None) -> tuple[Capacity, ...]:
    """What was asked for in blocks, smallest first, each once; a share of the distinct blocks is one block at least.
    Raises ConfigError for one that holds no block, and for bytes where `block_bytes` is not known."""
    sizes: dict[int, Capacity] = {}
    for wish in wishes:
        if wish.unit == "bytes" and block_bytes is None:
            raise ConfigError(f"--capacity {wish.text} needs --block-bytes, the size of a block, such as 2MiB")
        share = {"%": distinct / 100, "blocks": 1, "bytes": 1 / (block_bytes or 1)}[wish.unit]
        blocks = int(wish.amount * share + 1e-9)
        if wish.unit == "%" and wish.amount:
            blocks = max(1, blocks)
        if blocks < 1:
            raise ConfigError(f"--capacity {wish.text} is less than one block")
        sizes.setdefault(blocks, Capacity(wish.text, blocks))
    return tuple(sizes[blocks] for blocks in sorted(sizes))


def _wish(text: str) -> Wish:
    amount, unit = _split(text)
    if unit == "%":
        if amount > 100:
            raise ConfigError(f"'{text}' is more than all distinct blocks of the trace; the most is 100%")
        return Wish(text, amount, "%")
    if unit in ("", "block", "blocks"):
        return Wish(text, amount, "blocks")
    if unit in _UNITS:
        return Wish(text, amount * _UNITS[unit], "bytes")
    raise ConfigError(f"'{text}' is not a capacity; expected one such as 5%, 5000 or 16GiB")


def _split(text: str) -> tuple[float, str]:
    """Amount and lower-case unit; a unit of "?" where the text is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return (float(found[1]), found[2].lower()) if found else (0.0, "?")
