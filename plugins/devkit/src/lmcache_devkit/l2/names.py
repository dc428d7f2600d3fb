"""Distinct keys never meet, whatever their names are made of."""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmcache_core.contracts.capability import Capability
from lmcache_core.model.keys import HashChain, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import Rig

DONE, MISSING = Outcome.DONE, Outcome.MISSING
SMALL_BYTES: Final = 64

NAMES: Final = (
    "",
    ".",
    "..",
    "../../../../etc/passwd",
    "/absolute",
    "a/b",
    "a//b",
    "a\\b",
    "a b",
    "a%2Fb",
    "a\x01b",
    "a\x7fb",
    "a\nb",
    "a\x00",
    "-rf",
    "*?[]{}",
    "model@revision:tag#part",
    "モデル/大",
    "🦙",
    "e\u0301",
    "\u202eright to left",
    "x" * 300,
    "x" * 299 + "y",
    "長" * 300,
)
ALIKE: Final = (
    ("Model", "model", "MODEL"),
    (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    ("ß", "ss", "SS"),
    ("a", "a ", " a", "a\t"),
    ("a-b", "a_b", "a.b", "a/b"),
    ("ﬁ", "fi"),
    ("1", "\uff11", "01"),
)
OTHER_FIELDS: Final[dict[str, Any]] = {
    "kv_rank": 0x02010201,
    "object_group": 65_535,
    "chunk_tokens": 16,
    "chain": HashChain.SHA256_CBOR,
    "layout": bytes(16),
}


class Names(L2Fixtures):
    def test_one_hash_in_two_spaces_is_two_objects(self, rig: Rig) -> None:
        (key,) = rig.put(1)
        changed = {**OTHER_FIELDS, "cache_salt": f"{rig.token} other", "model_name": f"../{rig.token}"}
        others = [rig.key(0, **{field: value}) for field, value in changed.items()]
        for other, field in zip(others, changed, strict=True):
            assert rig.driver.has(other) == (MISSING,), f"{field} is not part of the name"
        assert rig.driver.store(*map(rig.whole, others)) == (DONE,) * len(others)
        rig.assert_whole(key, *others)

    @pytest.mark.parametrize("field", ["model_name", "cache_salt"])
    def test_names_of_any_characters_are_kept_apart(self, rig: Rig, field: str) -> None:
        _assert_apart(rig, [rig.key(0, **{field: name}) for name in NAMES])

    @pytest.mark.parametrize("names", ALIKE, ids=lambda names: " ".join(map(ascii, names)))
    def test_names_that_look_alike_are_kept_apart(self, rig: Rig, names: tuple[str, ...]) -> None:
        _assert_apart(rig, [rig.key(0, model_name=name) for name in names])
        _assert_apart(rig, [rig.key(0, cache_salt=name) for name in names])

    def test_hashes_that_differ_in_one_bit_are_kept_apart(self, rig: Rig) -> None:
        _assert_apart(rig, [rig.key(1 << bit) for bit in range(0, 256, 5)])

    def test_salts_of_any_text_are_kept_apart(self, rig: Rig) -> None:
        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @example(["a b", "ab", " ab", "a/b", "AB"])  # what adapters lose when they make names fit for their backend
        @given(st.lists(st.text(max_size=60), min_size=2, max_size=4, unique=True))
        def kept_apart(salts: list[str]) -> None:
            keys = [rig.key(0, cache_salt=salt) for salt in salts]
            _assert_apart(rig, keys)
            if Capability.DELETE in rig.capabilities:
                rig.driver.delete(*keys)

        kept_apart()


def _assert_apart(rig: Rig, keys: list[ObjectKey]) -> None:
    """None is there before it is stored, and each has its own bytes once all are."""
    for key in keys:
        # Where nothing can be deleted, an earlier example may have left the same name.
        if key.object_id not in rig.driver.stored:
            assert rig.driver.has(key) == (MISSING,), f"{_named(key)} is taken for another object"
        assert rig.driver.store((key, rig.memory.sealed(key, _payload(key)))) == (DONE,)
    for key in keys:
        _, buffer = item = rig.empty(key, SMALL_BYTES)
        assert rig.driver.verified_load(item) == (DONE,), _named(key)
        assert buffer.view[HEADER_BYTES:] == _payload(key), _named(key)
    if Capability.LIST in rig.capabilities:
        assert set(keys) <= set(rig.driver.keys(1_000))


def _named(key: ObjectKey) -> str:
    return f"model {key.space.model_name!a}, salt {key.space.cache_salt!a}, hash {key.chunk_hash.hex()}"


def _payload(key: ObjectKey) -> bytes:
    return blake3(key.canonical).digest(SMALL_BYTES)
