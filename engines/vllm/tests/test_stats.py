from __future__ import annotations

import pytest

from lmcache_vllm.stats import Counters, split_label, summary


def test_counts_are_taken_once() -> None:
    counters = Counters()
    counters.add("lookups")
    counters.add("lookups", 2)
    counters.add("failed_lookups", reason="timeout")
    assert counters.take() == {"lookups": 3, "failed_lookups:timeout": 1}
    assert counters.take() == {}


def test_a_name_without_a_description() -> None:
    with pytest.raises(KeyError):
        Counters().add("lookup")


def test_labels() -> None:
    assert split_label("lookups") == ("lookups", "")
    assert split_label("failed_lookups:timeout") == ("failed_lookups", "timeout")


def test_a_summary() -> None:
    shown = summary(
        {"lookups": 4, "lookup_seconds": 0.006, "failed_lookups:a": 1, "failed_lookups:b": 1, "store_seconds": 1.0}
    )
    assert shown == {"lookups": 4, "failed_lookups": 2, "store_gb_per_second": 0.0, "lookup_ms": 3.0}
