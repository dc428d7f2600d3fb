"""Windows against a list of everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.metrics.hit_rate_window import BIN_SECONDS, WINDOWS, HitRates, HitRateWindow

TIMES = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=60)


@given(TIMES, st.integers(0, 5000))
def test_a_window_has_what_came_in_it(steps: list[tuple[int, int, int]], later: int) -> None:
    window, now, came = HitRateWindow(), 1_700_000, list[tuple[int, int, int]]()
    for passed, requested, hit in steps:
        now += passed
        window.add(now, requested, min(hit, requested), 0.0)
        came.append((now, requested, min(hit, requested)))
    now += later
    rates = window.rates(now)
    for name, seconds in {**WINDOWS, "start": 10**9}.items():
        since = now // BIN_SECONDS * BIN_SECONDS + BIN_SECONDS - seconds
        inside = [(requested, hit) for at, requested, hit in came if at >= since]
        if not inside:
            assert name not in rates
            continue
        requested, hit = (sum(column) for column in zip(*inside, strict=True))
        assert rates[name].requested == requested
        assert rates[name].actual == pytest.approx(hit / requested)


def test_a_wrong_estimate_is_kept_within_what_can_be() -> None:
    window = HitRateWindow()
    window.add(1000.0, 10, 6, 8.0)
    assert window.rates(1000.0)["5m"] == HitRates(10, 0.6, 0.6)


def test_nothing_requested_gives_no_rate() -> None:
    assert HitRateWindow().rates(1000.0) == {}
