"""Numbers as people say them."""

from __future__ import annotations

import pytest

from lmcache_tools.quantities import count_text, ratio_text, seconds_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "1 MiB"),
        (5 * 2**30, "5 GiB"),
        (10.25 * 2**30, "10.2 GiB"),
        (123.4 * 2**30, "123 GiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000042, "4.2 us"),
        (0.0123, "12.3 ms"),
        (3, "3 s"),
        (59.96, "60 s"),
        (61, "1 min 1 s"),
        (119.7, "1 min 59 s"),
        (7260, "2 h 1 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_counts_and_ratios() -> None:
    assert count_text(1234567) == "1,234,567"
    assert ratio_text(1, 3) == "33.3 %"
    assert ratio_text(None, 3) == ratio_text(1, 0) == ratio_text(1, None) == "-"
