"""Numbers as people say them."""

from __future__ import annotations

from typing import Final

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def size_text(size_bytes: float) -> str:
    """As in "1.5 GiB": three digits, so not exact."""
    size = float(size_bytes)
    for unit in _SIZES[:-1]:
        if abs(size) < 1000 or (unit == "B" and abs(size) < 1024):
            return f"{_three_digits(size)} {unit}"
        size /= 1024
    return f"{_three_digits(size)} {_SIZES[-1]}"


def count_text(count: float) -> str:
    """As in "1,234,567"."""
    return f"{count:,.0f}"


def seconds_text(seconds: float) -> str:
    """As in "3 h 12 min" or "4.2 ms"."""
    if seconds < 0.001:
        return f"{_three_digits(seconds * 1e6)} us"
    if seconds < 1:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < _MINUTE:
        return f"{_three_digits(seconds)} s"
    whole = int(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY:,} d {whole % _DAY // _HOUR} h"


def ratio_text(part: float | None, whole: float | None) -> str:
    """As in "42.1 %"; "-" where there is nothing to be a part of."""
    return f"{100 * part / whole:.1f} %" if whole and part is not None else "-"


def _three_digits(value: float) -> str:
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
