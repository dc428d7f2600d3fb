"""Names of clients' choice as label values."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from lmcache_observability.metrics.label_names import LENGTH_MAX, OTHER, LabelNames, printable


@given(st.text(st.characters(), max_size=300))
def test_what_is_shown_breaks_nothing(value: str) -> None:
    shown = printable(value)
    assert shown.isprintable()
    assert len(shown) <= LENGTH_MAX
    assert shown.encode().decode() == shown
    assert printable(value) == shown
    if value.isprintable() and len(value) <= LENGTH_MAX:
        assert shown == value


@given(st.text(st.characters(), max_size=200), st.text(st.characters(), max_size=200))
def test_different_names_stay_different(one: str, other: str) -> None:
    assert (printable(one) == printable(other)) == (one == other)


@given(st.lists(st.text(max_size=3), max_size=40), st.integers(1, 5))
def test_a_value_keeps_its_name_for_ever(values: list[str], limit: int) -> None:
    names = LabelNames(limit, "plain")
    first = {value: names.show("model_name", value) for value in values}
    assert {value: names.show("model_name", value) for value in values} == first
    assert len(set(first.values()) - {OTHER}) <= limit


def test_each_label_has_its_own_limit() -> None:
    names = LabelNames(2, "plain")
    assert [names.show("a", value) for value in "xyzxyz"] == ["x", "y", OTHER, "x", "y", OTHER]
    assert [names.show("b", value) for value in "zyx"] == ["z", "y", OTHER]


def test_what_core_calls_other_takes_no_place() -> None:
    names = LabelNames(1, "plain")
    assert (names.show("a", OTHER), names.show("a", "x"), names.show("a", OTHER)) == (OTHER, "x", OTHER)


def test_salts_alone_can_be_hashed() -> None:
    names = LabelNames(10, "hashed")
    assert names.show("model_name", "tenant") == "tenant"
    shown = names.show("cache_salt", "tenant")
    assert "tenant" not in shown
    assert len(shown) == 16
    assert names.show("cache_salt", "") == ""


def test_threads_agree() -> None:
    names, shown = LabelNames(100, "plain"), list[list[str]]()

    def ask() -> None:
        shown.append([names.show("a", f"v{number}") for number in range(1000)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = {name for each in shown for name in each} - {OTHER}
    assert len(named) == 100
    assert all(each == shown[0] or set(each) - {OTHER} <= named for each in shown)
