"""Names lead back to their objects, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_core import HashChain, KeySpace, ObjectKey
from lmcache_object_remote import object_id_of, object_name

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)


@given(TEXTS, TEXTS, st.binary(min_size=32, max_size=32), st.sampled_from(["", "kv/", "a/b/", "with space/", "\n/"]))
def test_a_name_leads_back_to_its_object(model: str, salt: str, chunk_hash: bytes, prefix: str) -> None:
    key = ObjectKey(KeySpace(model, 0, 0, salt, 256, HashChain.BLAKE3, bytes(16)), chunk_hash)
    name = object_name(prefix, key)
    assert name.startswith(prefix)
    assert object_id_of(name) == key.object_id


@pytest.mark.parametrize(
    "name",
    [
        "",
        "notes.txt",
        "m-00000000/s-00000000/ab/" + "cd" * 16 + ".kv",  # another fan-out
        "m-00000000/s-00000000/cd/" + "cd" * 16,
        "m-00000000/s-00000000/cd/" + "cd" * 15 + ".kv",
        "m-00000000/s-00000000/cd/" + "CD" * 16 + ".kv",
        "s-00000000/cd/" + "cd" * 16 + ".kv",
        "m-00000000/s-00000000/cd/" + "cd" * 16 + ".kv.tmp",
    ],
)
def test_what_is_not_an_object_of_ours_has_none(name: str) -> None:
    assert object_id_of(name) is None
