"""Keys as callers see them lead back to the objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_admin.object_entries import l2_entry, read_filter, read_keys
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey, pack_kv_rank
from lmcache_http.admin_api.objects import ObjectEntry
from lmcache_http.problem import ProblemError

KEYS = st.builds(
    lambda model, world, worker, salt, chunk_hash, layout: ObjectKey(
        KeySpace(model, pack_kv_rank(world, worker % world), 0, salt, 256, HashChain.BLAKE3, layout), chunk_hash
    ),
    st.text(min_size=1, max_size=40),
    st.integers(1, 255),
    st.integers(0, 254),
    st.text(max_size=40),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
)


@given(KEYS)
def test_an_entry_says_whose_object_it_is_and_its_key_leads_back(key: ObjectKey) -> None:
    entry = ObjectEntry.model_validate(l2_entry(key, 4196), strict=True)
    assert entry.stored_bytes == 4196
    assert read_keys([entry.key, entry.key.upper()]) == [key, key]
    assert entry.key.startswith(entry.chunk_hash)
    assert pack_kv_rank(entry.world_size, entry.worker_id) == key.space.kv_rank
    assert read_filter(entry.model_name, None).passes(key)


def test_what_is_not_a_key_and_what_is_not_a_salt_is_refused() -> None:
    with pytest.raises(
        ProblemError, match=r"field 'keys': not a canonical object key.*; take `key` of GET /cache/objects"
    ):
        read_keys(["00" * 40])
    with pytest.raises(ProblemError, match="cache_salt: a cache salt holds none of"):
        read_filter(None, "a/b")
    assert read_filter(None, "_default").cache_salt == ""
    assert read_filter(None, None).cache_salt is None
