"""Hypothesis strategies for whatever an operation may be sent."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lmcache_client.engine_key import TokenSequence, encode_tokens

_NAMES = st.sampled_from(["model", "", "r", "salt"]) | st.text(max_size=20)
_NUMBERS = st.sampled_from([0, 1, 2, 16, 32, 64]) | st.integers(-(2**63), 2**64 - 1)
_TOKENS = st.lists(st.integers(0, 2**31), max_size=80).map(lambda tokens: msgspec.Raw(encode_tokens(tokens)))
_ANYTHING = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _NAMES | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_SIMPLE: Mapping[Any, SearchStrategy[Any]] = {
    int: _NUMBERS,
    str: _NAMES,
    bool: st.booleans(),
    float: st.floats() | st.integers(-5, 5).map(float),
    bytes: st.binary(max_size=64),
    bytearray: st.binary(max_size=64),
    memoryview: st.binary(max_size=64),
    type(None): st.none(),
    TokenSequence: _TOKENS,
    msgspec.msgpack.Ext: st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=64)),
    msgspec.Raw: _TOKENS | _ANYTHING.map(lambda value: msgspec.Raw(msgspec.msgpack.encode(value))),
    Any: _ANYTHING,
}


def values_of(kind: Any) -> SearchStrategy[Any]:
    """Values of a payload type, as a peer may send them: well-typed, and otherwise as odd as they come.

    Raises TypeError for a type that it does not know; give the suite's `payloads` a strategy of your own then."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each) for each in inside])
    if origin in (list, set, frozenset) or (origin is tuple and inside[-1:] == (...,)):
        return st.lists(values_of(inside[0]), max_size=4)
    if origin is tuple:
        return st.tuples(*map(values_of, inside))
    if origin in (dict, Mapping):
        return st.dictionaries(values_of(inside[0]), values_of(inside[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(kind, **{field.name: values_of(field.type) for field in msgspec.structs.fields(kind)})
    raise TypeError(f"no values are known for {kind!r}")
