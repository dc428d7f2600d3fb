"""Names: equal exactly for equal facts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_kv_identity import approximate_name, engine_name, fingerprint, segment_name, with_variant

HEX = st.text("0123456789abcdef", min_size=16, max_size=16)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
FACTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)


def reordered(value: Any) -> Any:
    """The same facts, with the keys of every mapping the other way round, and tuples for lists."""
    if isinstance(value, dict):
        return {key: reordered(inner) for key, inner in reversed(value.items())}
    return tuple(map(reordered, value)) if isinstance(value, list) else value


def typed(value: Any) -> Any:
    """Facts that Python takes for equal, and JSON does not: 1, 1.0 and true."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    return [typed(inner) for inner in value] if isinstance(value, list) else (type(value).__name__, repr(value))


@settings(deadline=None)
@given(FACTS)
def test_the_order_of_keys_does_not_count(facts: dict[str, Any]) -> None:
    assert fingerprint(facts) == fingerprint(reordered(facts))


@settings(deadline=None)
@given(FACTS, FACTS)
def test_other_facts_are_another_name(some: dict[str, Any], others: dict[str, Any]) -> None:
    assert (fingerprint(some) == fingerprint(others)) == (typed(some) == typed(others))


def test_another_process_finds_the_same() -> None:
    """Whatever seed its hashes of texts have."""
    ask = "from lmcache_kv_identity import fingerprint; print(fingerprint({'b': [1, 'x'], 'a': {'z': None, 'y': 2.5}}))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == fingerprint({"a": {"y": 2.5, "z": None}, "b": (1, "x")})


@pytest.mark.parametrize("value", [object(), 1j, b"bytes".__class__, float])
def test_what_has_no_lasting_text_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="values as JSON has them"):
        fingerprint({"fact": value})


@given(st.text(max_size=20), FACTS, HEX)
def test_a_name_is_the_served_one_and_fingerprints(served: str, facts: dict[str, Any], variant: str) -> None:
    name = engine_name(served, facts)
    assert name == f"{served}##{fingerprint(facts)}"
    assert with_variant(name, variant) == f"{name}%%{variant}"
    assert with_variant(name, "") == name
    assert len({name, approximate_name(name), segment_name(name), with_variant(name, "0" * 16)}) == 4
