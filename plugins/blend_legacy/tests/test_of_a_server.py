"""A raw client whose buffer is shared memory: its rows have afterwards what was in those that it stored, to the bit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from lmcache_blend_legacy.events import LegacyChunksRead, LegacyLookupAnswered, LegacyRequestRefused
from lmcache_blend_legacy.messages import (
    LOOKUP,
    LOOKUP_V2,
    RETRIEVE,
    RETRIEVE_V2,
    STORE_FINAL,
    STORE_PRE_COMPUTED,
    UNREGISTER,
)
from lmcache_client import NO_TOKENS, BlendMatch, HashedKey, Operation, encode_tokens
from lmcache_client.engine_key import PADDING
from lmcache_core import LMCacheError
from lmcache_core.app.server import Server
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_transfer_torch.messages import REGISTER as REGISTER_PAGES
from lmcache_transfer_torch.messages import RETRIEVE as RETRIEVE_PAGES
from plugins.blend_legacy.tests.conftest import (
    EVENT,
    FIRST,
    GARBAGE,
    HEAD,
    HEADS,
    LAYERS,
    NO,
    ROWS,
    SECOND,
    SEPARATOR,
    SHORT,
    SIZE,
    Client,
    held,
    prompt,
    started,
    status,
)

SHAPES = {"heads": (2, ROWS, HEADS, HEAD), "flat": (2, ROWS, HEADS * HEAD)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_documents_are_found_in_another_order_and_written_where_they_are(server: Server, shape: Sequence[int]) -> None:
    with Client(server, shape) as client:
        client.store(FIRST, SECOND, SHORT, offset=3)
        tokens = prompt([1, 2], SHORT, SECOND, FIRST)
        found = client.lookup(tokens)
        assert found == [(4, 7), (9, 25), (27, 64)]
        assert client.retrieve(tokens, found, 50) == (EVENT, True)
        client.check({54: SHORT, 59: SECOND, 77: FIRST})
        assert held(server) == 0


def test_matches_say_each_chunk_and_its_place(server: Server, client: Client) -> None:
    client.store(FIRST)
    tokens = prompt(SHORT, FIRST)
    found = client.lookup(tokens, LOOKUP_V2)
    assert [(each.old_st, each.old_ed, each.cur_st, each.cur_ed) for each in found] == [
        (0, 16, 5, 21), (16, 32, 21, 37), (32, 37, 37, 42),
    ]  # fmt: skip
    shown = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
    assert list(shown[0]) == ["old_st", "old_ed", "cur_st", "cur_ed", "hash"]
    assert client.retrieve(tokens, [found[2], found[0]], 0, RETRIEVE_V2) == (EVENT, True)
    for layer, rows in enumerate(client.rows):
        right = client.right(layer, FIRST)
        assert np.array_equal(rows[:, 5:21], right[:, :16])
        assert np.array_equal(rows[:, 37:42], right[:, 32:])
        assert (rows[:, 21:37] == GARBAGE).all()
        assert (rows[:, 42:] == GARBAGE).all()
    client.fake.end()
    assert held(server) == 0


def test_a_part_of_a_prompt_is_in_the_rows_from_the_offset_on(client: Client) -> None:
    tokens = prompt(FIRST, SECOND)
    start = len(FIRST) + len(SEPARATOR)
    client.write(SECOND, 9)
    assert client.ask(STORE_PRE_COMPUTED, client.key(tokens, start), 9, client.instance_id, EVENT)[1]
    client.wipe()
    assert client.lookup(tokens) == [(start, start + SIZE)]
    assert client.retrieve(tokens, [(start, start + SIZE)], 20, start=start) == (EVENT, True)
    client.check({20: SECOND})


def test_a_document_may_come_twice(server: Server, client: Client) -> None:
    before = status(server).get("stored_chunks", 0)
    client.store(SHORT, SECOND, SHORT)
    assert status(server)["stored_chunks"] == before + 2
    tokens = prompt(SECOND, SHORT, SECOND)
    found = client.lookup(tokens)
    assert found == [(0, 16), (18, 21), (23, 39)]
    assert client.retrieve(tokens, found) == (EVENT, True)
    client.check({0: SECOND, 18: SHORT, 23: SECOND})
    assert held(server) == 0


def test_what_is_there_is_not_written_again(server: Server, client: Client) -> None:
    client.store(SECOND)
    for rows in client.rows:
        rows[:] = -1
    assert client.ask(STORE_PRE_COMPUTED, client.key(SECOND), 0, client.instance_id, EVENT) == (b"", True)
    client.wipe()
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})


def test_the_rows_that_a_short_chunk_lacks_are_zeros(client: Client) -> None:
    client.store(SHORT)
    padded = client.key([*SHORT, *[PADDING] * (SIZE - len(SHORT))], model_name="model##segments")
    assert client.ask(RETRIEVE_PAGES, padded, ~client.instance_id, [list(range(SIZE))], EVENT, 0) == (EVENT, True)
    for layer, rows in enumerate(client.rows):
        assert np.array_equal(rows[:, :3], client.right(layer, SHORT))
        assert (rows[:, 3:SIZE] == 0).all()


def register_pages(client: Client) -> None:
    """The same memory, as pages of one slot, under the same instance id."""
    infos = [{"engine_group_id": 0, "layer_indices": list(range(LAYERS)), "tokens_per_block": 1}]
    tensors = client.tensors([2, ROWS, 1, HEADS, HEAD])
    client.ask(REGISTER_PAGES, client.instance_id, tensors, "model", 1, "vllm", {"kv_layout": "NHD"}, infos)


def test_documents_are_not_found_as_a_prefix(client: Client) -> None:
    register_pages(client)
    client.store(FIRST)
    assert client.lookup(FIRST) == [(0, len(FIRST))]
    assert client.fake.lookup(FIRST) == 0


def test_a_final_prompt_is_found_as_approximate_alone(client: Client) -> None:
    register_pages(client)
    tokens = prompt(FIRST, SECOND)
    whole = len(tokens) // SIZE * SIZE
    client.write(tokens, 11)
    assert client.ask(STORE_FINAL, client.key(tokens), 11, client.instance_id, EVENT) == (EVENT, True)
    client.wipe()
    assert client.fake.lookup(tokens) == 0
    assert client.lookup(tokens) == []
    final = client.key(tokens, 0, whole, model_name="model##blend")
    assert client.fake.scheduler.lookup_hits(msgspec.structs.replace(final, worker_id=None)) == whole // SIZE
    blocks = list(range(1, 1 + whole))  # block 0 is the null block of pages
    assert client.ask(RETRIEVE_PAGES, final, client.instance_id, [blocks], EVENT, 0) == (EVENT, True)
    for layer, rows in enumerate(client.rows):
        assert np.array_equal(rows[:, 1 : 1 + whole], client.right(layer, tokens)[:, :whole])
        assert (rows[:, 1 + whole :] == GARBAGE).all()


def test_tenants_and_adapters_find_their_own(server: Server, client: Client) -> None:
    client.store(SECOND)
    others: Sequence[dict[str, Any]] = ({"cache_salt": "tenant"}, {"model_name": f"model%%{'0' * 16}"})
    for changes in others:
        assert client.lookup(SECOND, **changes) == []
        assert client.retrieve(SECOND, [(0, SIZE)], **changes) == NO
    adapted = client.key(SECOND, model_name=f"model%%{'0' * 16}")
    assert client.ask(STORE_PRE_COMPUTED, adapted, 0, client.instance_id, EVENT)[1]
    assert client.lookup(SECOND, model_name=adapted.model_name) == [(0, SIZE)]


def test_every_shard_must_have_a_chunk(server: Server) -> None:
    options: dict[str, Any] = {"world_size": 2}
    with Client(server, **options) as one, Client(server, **options, worker_id=1) as other:
        one.store(SECOND)
        assert one.lookup(SECOND) == []
        other.store(SECOND)
        assert one.lookup(SECOND) == [(0, SIZE)]
        for each in (one, other):
            assert each.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
            each.check({0: SECOND})


def test_without_a_separator_a_request_is_one_document() -> None:
    server = started(offer_settings={})
    try:
        with Client(server) as client:
            tokens = [*SECOND, *SEPARATOR, *SECOND]
            client.write(tokens, 0)
            assert client.ask(STORE_PRE_COMPUTED, client.key(tokens), 0, client.instance_id, EVENT)[1]
            assert client.lookup(tokens) == [(0, len(tokens))]
            assert client.lookup([1, *tokens]) == []
    finally:
        server.stop(0.0)


def test_a_buffer_that_is_registered_again_is_the_one_that_counts(client: Client) -> None:
    client.store(SECOND)
    client.register()
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})


BAD_BUFFERS: Mapping[str, tuple[Any, str]] = {
    "one row for K and V": (lambda client: {"tensors": client.tensors([ROWS, 2 * HEADS * HEAD])}, "is not \\[2, rows"),
    "latent attention": (lambda client: {"tensors": client.tensors([ROWS, 24])}, "latent attention \\(MLA\\)"),
    "latent attention, one plane": (lambda client: {"tensors": client.tensors([1, ROWS, 24])}, "latent attention"),
    "rows first": (lambda client: {"tensors": client.tensors([ROWS, 2, HEADS * HEAD])}, "is not \\[2, rows"),
    "no tensors": (lambda client: {"tensors": []}, "0 tensors"),
    "beyond its memory": (lambda client: {"tensors": client.tensors([2, 2 * ROWS, HEADS, HEAD])}, "reaches to byte"),
    "rows in pieces": (
        lambda client: {"tensors": client.tensors([2, 50, HEADS, HEAD], stride=[1600, 32, 16, 2])}, "in memory|contiguous",
    ),
    "an unknown type": (lambda client: {"tensors": client.tensors(dtype="int4")}, "'int4' are not known"),
    "no model": (lambda client: {"model": ""}, "model_name is empty"),
    "a negative instance": (lambda client: {"instance_id": -1}, "does not fit"),
    "no world": (lambda client: {"world_size": 0}, "world"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD_BUFFERS.values(), ids=BAD_BUFFERS)
def test_buffers_that_cannot_be_are_refused(server: Server, changes: Any, reason: str) -> None:
    client = Client(server)
    try:
        before = status(server).get("refused_requests", 0)
        client.register(**changes(client))
        refused = status(server)["refused"]
        assert status(server)["refused_requests"] == before + 1
        assert any(re.search(reason, each) for each in refused), refused
        assert client.ask(STORE_PRE_COMPUTED, client.key(SECOND), 0, client.instance_id, EVENT) == NO
        client.register()
        client.store(SECOND)
        assert client.lookup(SECOND) == [(0, SIZE)]
    finally:
        client.close()


BAD_KEYS: Mapping[str, Any] = {
    "another model": {"model_name": "other"},
    "no model": {"model_name": ""},
    "another world": {"world_size": 2},
    "another shard": {"worker_id": 1},
    "no shard": {"worker_id": None},
    "backwards": {"start": 5, "end": 3},
    "before the prompt": {"start": -1},
    "behind the prompt": {"end": len(SECOND) + 1},
    "a salt that cannot be": {"cache_salt": "a/b"},
    "a long request id": {"request_id": "r" * 2000},
    "no tokens": {"token_ids": encode_tokens([])},
}


@pytest.mark.parametrize("changes", BAD_KEYS.values(), ids=BAD_KEYS)
@pytest.mark.parametrize("operation", [STORE_PRE_COMPUTED, STORE_FINAL, RETRIEVE, RETRIEVE_V2])
def test_keys_that_cannot_be_move_nothing(
    server: Server, client: Client, operation: Operation, changes: dict[str, Any]
) -> None:
    client.store(SECOND)
    matches = client.lookup(SECOND, LOOKUP_V2)
    found = {RETRIEVE: [[(0, SIZE)]], RETRIEVE_V2: [matches]}.get(operation, [])
    free = server.status()["l1"]["free"]
    key = msgspec.structs.replace(client.key(SECOND), **changes)
    assert client.ask(operation, key, *found, 0, client.instance_id, EVENT) == NO
    client.check({})
    assert server.status()["l1"]["free"] == free
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.check({0: SECOND})
    client.fake.end()
    assert held(server) == 0


@pytest.mark.parametrize("offset", [-1, ROWS - SIZE + 1, 2**48, 2**62, -(2**62)])
def test_rows_that_the_buffer_lacks_move_nothing(server: Server, client: Client, offset: int) -> None:
    client.store(SECOND)
    for operation in (STORE_PRE_COMPUTED, STORE_FINAL):
        key = client.key(list(range(5000, 5000 + SIZE)))
        assert client.ask(operation, key, offset, client.instance_id, EVENT) == NO
    assert client.retrieve(SECOND, [(0, SIZE)], offset) == NO
    client.check({})
    assert client.retrieve(SECOND, [(0, SIZE)], ROWS - SIZE) == (EVENT, True)
    client.check({ROWS - SIZE: SECOND})
    client.fake.end()
    assert held(server) == 0


@pytest.mark.parametrize("ranges", [[], [(0, 8)], [(1, SIZE)], [(0, SIZE), (0, SIZE)], [(SIZE, 0)], [(0, 2**62)]])
def test_ranges_that_no_lookup_gives_move_nothing(client: Client, ranges: Any) -> None:
    client.store(SECOND)
    assert client.retrieve(SECOND, ranges) == NO
    client.check({})


def test_matches_that_no_lookup_gives_move_nothing(client: Client) -> None:
    client.store(FIRST)
    first, second, _ = client.lookup(FIRST, LOOKUP_V2)
    other = BlendMatch(0, SIZE, 0, SIZE, second.hash)
    for matches in ([], [other], [first, first], [msgspec.structs.replace(first, old_st=1, old_ed=SIZE + 1)]):
        assert client.retrieve(FIRST, matches, 0, RETRIEVE_V2) == NO
    client.check({})


def test_what_has_left_is_not_moved(client: Client) -> None:
    client.store(FIRST)
    tokens = prompt(SECOND, FIRST)
    found = client.lookup(tokens)
    client.fake.end()
    client.fake.scheduler.clear()
    assert client.lookup(tokens) == []
    assert client.retrieve(tokens, found) == NO
    client.check({})


def test_an_instance_without_a_buffer_moves_nothing(client: Client) -> None:
    client.store(SECOND)
    assert client.ask(UNREGISTER, ~client.instance_id) is None  # no engine's registration ends by it
    assert client.retrieve(SECOND, [(0, SIZE)]) == (EVENT, True)
    client.wipe()
    assert client.ask(UNREGISTER, client.instance_id) is None
    assert client.retrieve(SECOND, [(0, SIZE)]) == NO
    assert client.lookup(SECOND) == []
    assert client.ask(STORE_PRE_COMPUTED, client.key(SECOND), 0, 404, EVENT) == NO
    client.check({})


def test_lookups_of_what_cannot_be_find_nothing(client: Client) -> None:
    client.store(SECOND)
    for changes in ({"world_size": 0}, {"num_kv_readers": 256}, {"end": 99}, {"request_id": "r" * 2000}):
        for operation in (LOOKUP, LOOKUP_V2):
            assert client.lookup(SECOND, operation, **changes) == []
    assert client.lookup(SECOND, model_name="unknown") == []
    assert client.lookup([]) == []


def test_a_key_without_tokens_is_refused_with_the_reason(server: Server, client: Client) -> None:
    client.store(SECOND)
    about: dict[str, Any] = {"num_kv_readers": 1, "chunk_hashes": [bytes(32)], "hash_algorithm": "other"}
    key = HashedKey("model", 1, 0, NO_TOKENS, 0, SIZE, "r", **about)
    for operation in (LOOKUP, LOOKUP_V2):
        assert client.ask(operation, key) == []
    for operation, found in ((RETRIEVE, [[(0, SIZE)]]), (RETRIEVE_V2, [[]]), (STORE_PRE_COMPUTED, [])):
        assert client.ask(operation, key, *found, 0, client.instance_id, EVENT) == NO
    client.check({})
    refused = status(server)["refused"]
    assert [count for reason, count in refused.items() if "no token_ids" in reason] == [5]


def test_a_lookup_without_a_salt_is_counted_once_where_salts_are_required() -> None:
    server = started(reject_unsalted=True)
    try:
        with Client(server) as client:
            assert client.lookup(SECOND) == []
            assert server.status()["requests"]["unsalted_refused"] == 1
    finally:
        server.stop(0.0)


def test_where_nothing_copies_rows_the_reason_is_said() -> None:
    server = started(("blend_legacy",))
    try:
        with Client(server) as client:
            refused = status(server)["refused"]
            assert any("install lmcache-transfer-torch" in each for each in refused)
            assert client.lookup(SECOND) == []
    finally:
        server.stop(0.0)


def test_events_and_metrics_say_what_engines_asked_and_got(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, bus = EventRecorder(), server.parts.common.bus
    before = samples(server)
    client.store(FIRST)
    assert client.lookup(SECOND) == []
    client.fake.end()
    monkeypatch.setattr(bus, "publish", events.publish)
    monkeypatch.setattr(bus, "wants", events.wants)
    tokens = prompt(SHORT, FIRST)
    found = client.lookup(tokens)
    assert client.retrieve(tokens, found) == (EVENT, True)
    assert client.retrieve(tokens, [(0, len(SHORT))]) == NO
    client.register(world_size=0)
    whole = len(SHORT) + len(FIRST)
    (answered,) = events.of(LegacyLookupAnswered)
    about = (answered.tokens, answered.chunks, answered.found_tokens, answered.found_chunks)
    assert about == (whole, 4, len(FIRST), 3)
    assert [(each.asked_chunks, each.chunks) for each in events.of(LegacyChunksRead)] == [(3, 3), (1, 0)]
    (refused,) = events.of(LegacyRequestRefused)
    assert refused.operation == "cb_register_kv_cache"
    assert refused.reason in status(server)["refused"]
    more = {name: value - before[name] for name, value in samples(server).items()}
    assert more == {
        "lookup_requests": 2, "lookup_requested_tokens": len(SECOND) + whole, "lookup_hit_tokens": len(FIRST),
        "retrieve_requests": 2, "retrieve_chunks": 4, "scatter_chunks": 3, "stored_chunks": 3, "refused_requests": 1,
    }  # fmt: skip


def samples(server: Server) -> dict[str, float]:
    prefix = "lmcache_blend_legacy."
    return {each.name.removeprefix(prefix): each.value for each in server.samples() if each.name.startswith(prefix)}


def test_documents_outlive_a_restart(tmp_path: Path) -> None:
    plugins = ("blend_legacy", "transfer_torch", "fs")
    more = {"l2_adapter": [{"type": "fs", "base_path": str(tmp_path)}]}
    server = started(plugins, **more)
    try:
        with Client(server) as client:
            client.store(FIRST)
    finally:
        server.stop(10.0)
    server = started(plugins, **more)
    try:
        with Client(server) as client:
            tokens = prompt(SHORT, FIRST)
            assert client.lookup(tokens) == [(5, 42)]
            assert client.retrieve(tokens, [(5, 42)]) == (EVENT, True)
            client.check({5: FIRST})
    finally:
        server.stop(0.0)


def test_a_server_takes_one_of_the_two_modules() -> None:
    with pytest.raises(
        LMCacheError, match=r"'blend' .* and 'blend_legacy' .* both answer operation 'cb_retrieve_pre_computed'"
    ):
        started(("blend", "blend_legacy"), engine_type=("blend", "blend_legacy"))
