"""Storing and retrieving through a whole server, as engines do it."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path

import msgspec
import pytest

from core.tests.server.conftest import StartServer
from lmcache_client.operations import UNREGISTER_ENGINE_DRIVEN, WAIT_PREFETCH_STATUS
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_devkit.stock_pickle import stock_pickle

TOKENS = list(range(1000))
CHUNKS = 62


def quiet(server: Server) -> None:
    """Nothing is held once every owner has ended."""
    counts = server.status()["l1"]
    assert (counts["held"], counts["quarantined"]) == (0, 0), counts
    assert counts["state_counts_add_up"]


def settle(server: Server) -> None:
    deadline = time.monotonic() + 10
    while server.status()["store"]["backlog_bytes"] and time.monotonic() < deadline:
        time.sleep(0.01)


def test_what_one_engine_stores_another_one_reads(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as first, FakeEngine(endpoint) as second:
        assert first.lookup(TOKENS) == 0
        assert first.store(TOKENS)
        first.end()
        assert second.lookup(TOKENS) == CHUNKS
        assert second.retrieve(TOKENS) == [second.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        second.end()
        quiet(server)


def test_engines_with_other_blocks_do_not_read_each_others_chunks(server: Server, endpoint: str) -> None:
    """In which order a block has its elements, stock engines do not say: only blocks of one size are taken for alike.  While
    both live, a chunk is a hit when both can read it."""
    with FakeEngine(endpoint, block_tokens=8) as first, FakeEngine(endpoint, block_tokens=16) as second:
        assert first.store(TOKENS)
        assert (first.lookup(TOKENS), second.lookup(TOKENS)) == (0, 0)
        assert second.retrieve(TOKENS) is None
        assert second.store(TOKENS)
        assert (first.lookup(TOKENS), second.lookup(TOKENS)) == (CHUNKS, CHUNKS)
        first.end()
        second.end()
        first.worker.call(UNREGISTER_ENGINE_DRIVEN, first.instance_id)
        only_second = [token + 5_000 for token in TOKENS]
        assert second.store(only_second)
        assert second.lookup(only_second) == CHUNKS
        second.end()


def test_a_prompt_that_differs_hits_up_to_the_difference(endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        engine.store(TOKENS)
        changed = [*TOKENS[:500], 99999, *TOKENS[501:]]
        assert engine.lookup(changed, "other") == 500 // 16
        found = engine.retrieve(changed, "other", end=500 // 16 * 16)
        assert found == [engine.content(TOKENS, chunk) for chunk in range(31)]


def test_salts_models_and_shards_are_apart(endpoint: str) -> None:
    with (
        FakeEngine(endpoint) as engine,
        FakeEngine(endpoint, salt="s") as salted,
        FakeEngine(endpoint, model="n") as other,
    ):
        engine.store(TOKENS)
        assert salted.lookup(TOKENS) == 0
        assert other.lookup(TOKENS) == 0
        assert salted.retrieve(TOKENS) is None
        assert other.retrieve(TOKENS) is None


def test_two_geometries_under_one_name_never_see_each_others_bytes(endpoint: str) -> None:
    with FakeEngine(endpoint) as small, FakeEngine(endpoint, layers=4) as large:
        small.store(TOKENS)
        assert large.retrieve(TOKENS) is None
        large.store(TOKENS)
        assert small.retrieve(TOKENS) == [small.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        assert large.retrieve(TOKENS) == [large.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        assert large.content(TOKENS, 0) != small.content(TOKENS, 0)


def test_a_lookup_of_a_world_needs_all_of_its_shards(endpoint: str) -> None:
    with (
        FakeEngine(endpoint, world_size=2, worker_id=0) as zero,
        FakeEngine(endpoint, world_size=2, worker_id=1) as one,
    ):
        zero.store(TOKENS)
        assert zero.lookup(TOKENS, "a") == 0
        one.store(TOKENS, end=320)
        assert zero.lookup(TOKENS, "b") == 20
        assert one.retrieve(TOKENS, "b", end=320) == [one.content(TOKENS, chunk) for chunk in range(20)]
        assert zero.retrieve(TOKENS, "b", end=320) == [zero.content(TOKENS, chunk) for chunk in range(20)]


def test_a_worker_is_one_shard(endpoint: str) -> None:
    with FakeEngine(endpoint, world_size=2, worker_id=0) as engine:
        engine.store(TOKENS)
        engine._worker_id = 1
        assert engine.retrieve(TOKENS) is None


def test_chunks_travel_in_band_where_memory_cannot_be_shared(start_server: StartServer) -> None:
    server = start_server(l1_shared_memory=False)
    with FakeEngine(server.info.engine_endpoint) as engine:
        assert engine.segment is None
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS) == CHUNKS
        reply = engine.worker.prepare_retrieve(engine.key(TOKENS, "r", 0, 992), engine.instance_id)
        assert reply.success
        assert all(engine.content(TOKENS, chunk) in reply.data for chunk in range(CHUNKS))
        engine.worker.commit_retrieve(engine.key(TOKENS, "r", 0, 992), engine.instance_id)
        engine.end()
    quiet(server)


def test_a_worker_that_cannot_map_what_it_was_offered_loses_nothing(server: Server, endpoint: str) -> None:
    """It prepares (slots are reserved for it, which it ignores) and sends its chunks with the commit."""
    with FakeEngine(endpoint, maps_memory=False) as blind, FakeEngine(endpoint) as seeing:
        assert blind.store(TOKENS)
        assert seeing.lookup(TOKENS) == CHUNKS
        assert seeing.retrieve(TOKENS) == [blind.content(TOKENS, chunk) for chunk in range(CHUNKS)]
        seeing.end()
        quiet(server)


def test_a_worker_that_has_not_shown_what_it_can_is_given_both(endpoint: str) -> None:
    with FakeEngine(endpoint) as writer, FakeEngine(endpoint, maps_memory=False) as blind:
        writer.store(TOKENS)
        reply = blind.worker.prepare_retrieve(blind.key(TOKENS, "r", 0, 32), blind.instance_id)
        assert reply.success
        assert len(reply.context.slots) == 2  # type: ignore[arg-type]
        assert writer.content(TOKENS, 1) in reply.data
        proven = writer.worker.prepare_retrieve(writer.key(TOKENS, "r", 0, 32), writer.instance_id)
        assert proven.data == b""


@pytest.mark.parametrize(
    "data",
    [
        b"junk",
        pickle.dumps([1, 2, 3]),
        pickle.dumps(print),
        b"\x80\x04\x95",
    ],
)
def test_a_commit_that_cannot_be_read_is_refused_and_leaves_nothing(server: Server, endpoint: str, data: bytes) -> None:
    with FakeEngine(endpoint, maps_memory=False) as blind:
        key = blind.key(TOKENS, "r", 0, 32)
        blind.worker.prepare_store(key, blind.instance_id)
        assert blind.worker.commit_store(key, blind.instance_id, data) is False
        assert blind.lookup(TOKENS) == 0
        quiet(server)
        assert blind.store(TOKENS)


def test_a_commit_of_another_shape_is_refused(endpoint: str) -> None:
    with FakeEngine(endpoint, maps_memory=False) as blind, FakeEngine(endpoint, layers=4, model="n") as other:
        wrong = stock_pickle(other.layout, [other.content(TOKENS, 0), other.content(TOKENS, 1)])
        key = blind.key(TOKENS, "r", 0, 32)
        assert blind.worker.commit_store(key, blind.instance_id, wrong) is False


def test_a_store_of_what_is_there_has_nothing_to_do(endpoint: str) -> None:
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as second:
        engine.store(TOKENS, end=160)
        reply = second.worker.prepare_store(second.key(TOKENS, "r", 0, 320), second.instance_id)
        assert list(reply.context.chunk_indices) == list(range(10, 20))  # type: ignore[arg-type]
        assert second.worker.prepare_store(second.key(TOKENS, "r", 0, 160), second.instance_id).context.slots == ()


def test_unregistering_between_prepare_and_commit_publishes_nothing(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine, FakeEngine(endpoint) as other:
        engine.worker.prepare_store(engine.key(TOKENS, "r", 0, 320), engine.instance_id)
        engine.worker.unregister_engine_driven(engine.instance_id)
        assert engine.worker.commit_store(engine.key(TOKENS, "r", 0, 320), engine.instance_id) is False
        assert other.lookup(TOKENS) == 0
        quiet(server)


def test_a_worker_killed_between_prepare_and_commit_is_reaped(start_server: StartServer) -> None:
    server = start_server(worker_reap_timeout_seconds=0.2)
    engine = FakeEngine(server.info.engine_endpoint)
    engine.register()
    engine.worker.ping(engine.instance_id)
    engine.store(TOKENS)
    engine.worker.prepare_store(engine.key([5, *TOKENS], "r", 0, 320), engine.instance_id)
    engine.worker.prepare_retrieve(engine.key(TOKENS, "r", 0, 320), engine.instance_id)
    assert server.status()["l1"]["held"] == 40
    engine.close()
    deadline = time.monotonic() + 10
    while server.status()["workers"] and time.monotonic() < deadline:
        time.sleep(0.05)
    quiet(server)


def test_a_deadline_quarantines_and_the_late_commit_is_refused(start_server: StartServer) -> None:
    server = start_server(l1_write_ttl_seconds=0.1)
    with FakeEngine(server.info.engine_endpoint) as engine, FakeEngine(server.info.engine_endpoint) as other:
        key = engine.key(TOKENS, "r", 0, 320)
        slots = engine.worker.prepare_store(key, engine.instance_id).context.slots
        deadline = time.monotonic() + 10
        while server.status()["l1"]["quarantined"] != 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.store(TOKENS, end=320), "another worker may store the same chunks meanwhile"
        for slot in slots:  # type: ignore[union-attr]
            engine.write(slot, b"\xee" * slot.length)
        assert engine.worker.commit_store(key, engine.instance_id) is False
        assert other.retrieve(TOKENS, end=320) == [other.content(TOKENS, chunk) for chunk in range(20)]
        other.end()
        quiet(server)


def test_requests_that_end_twice_or_were_never_retrieved_leave_nothing(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        engine.store(TOKENS)
        for request in ("a", "b", "a"):
            assert engine.lookup(TOKENS, request) == CHUNKS
        for request in ("a", "a", "b", "never"):
            engine.end(request)
        quiet(server)


def test_transfers_after_the_end_of_their_session_still_work(endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        engine.lookup(TOKENS)
        engine.end()
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS, "next") == CHUNKS


def test_a_restarted_server_tells_workers_to_register_again(endpoint: str) -> None:
    with FakeEngine(endpoint) as known:
        assert known.worker.ping(known.instance_id)
        assert [known.worker.ping(12345), known.worker.ping(12345)] == [False, True]
        assert known.worker.prepare_store(known.key(TOKENS, "r", 0, 32), 12345).context.slots == ()
        assert known.worker.commit_store(known.key(TOKENS, "r", 0, 32), 12345) is False
        assert known.worker.prepare_retrieve(known.key(TOKENS, "r", 0, 32), 12345).success is False
        assert known.worker.commit_retrieve(known.key(TOKENS, "r", 0, 32), 12345) is True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": 1 << 40}, "too large for an L1"),
        ({"model": "m" * 3000}, "more than the 2048"),
        ({"world_size": 256}, "must be 1 to 255"),
    ],
)
def test_a_registration_that_cannot_be_kept_is_answered_empty_and_explained(
    server: Server, endpoint: str, change: dict[str, object], reason: str
) -> None:
    engine = FakeEngine(endpoint, **change)  # type: ignore[arg-type]
    assert engine.register() is False
    refused = server.status()["modules"]["engine_driven"]["registrations_refused"]
    assert any(reason in text for text in refused), refused
    assert engine.worker.ping(engine.instance_id) in (True, False)
    assert engine.worker.ping(engine.instance_id) is True
    engine.close()


def test_no_salt_can_pass_for_the_empty_one(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as unsalted, FakeEngine(endpoint, salt="_default") as other:
        assert unsalted.store(TOKENS)
        other.store(TOKENS)  # is answered that there is nothing to do
        assert other.lookup(TOKENS) == 0
        assert server.status()["l1"]["cached"] == CHUNKS
        assert [tenant["cache_salt"] for tenant in server.status()["tenants"]] == ["_default"]
        assert server.status()["l1"]["held"] == 0
        assert unsalted.lookup(TOKENS) == CHUNKS
        unsalted.end()


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0b", "s" * 129])
def test_salts_that_no_quota_could_name_are_refused(server: Server, endpoint: str, salt: str) -> None:
    with FakeEngine(endpoint, salt=salt) as engine:
        engine.store(TOKENS)  # is answered that there is nothing to do
        assert engine.lookup(TOKENS) == 0
        assert server.status()["l1"]["cached"] == 0
        assert server.status()["tenants"] == []
    with FakeEngine(endpoint, salt="s" * 128) as engine:
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS) == CHUNKS


def test_a_model_without_a_name_is_refused(server: Server, endpoint: str) -> None:
    engine = FakeEngine(endpoint, model="")
    try:
        assert not engine.register()
        assert any(
            "model_name is empty" in reason
            for reason in server.status()["modules"]["engine_driven"]["registrations_refused"]
        )
        assert engine.lookup(TOKENS) == 0
    finally:
        engine.close()


def test_a_prompt_comes_back_from_l2_and_the_same_one_to_two_engines_at_once(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint) as engine, FakeEngine(server.info.engine_endpoint) as other:
        engine.store(TOKENS)
        settle(server)
        engine.scheduler.clear()
        hits: dict[int, int] = {}
        threads = [
            threading.Thread(target=lambda number, who: hits.update({number: who.lookup(TOKENS)}), args=(number, who))
            for number, who in enumerate((engine, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert hits == {0: CHUNKS, 1: CHUNKS}
        for who in (engine, other):
            assert who.retrieve(TOKENS) == [who.content(TOKENS, chunk) for chunk in range(CHUNKS)]
            who.end()
        quiet(server)
        assert server.status()["l1"]["cached"] == 0, "prefetched chunks are temporary"


def test_a_store_larger_than_l1_is_partial_and_never_a_failure(start_server: StartServer) -> None:
    server = start_server(l1_size_gb=1 / 512)  # 2 MiB: 168 slots of 12 KiB
    tokens = list(range(16 * 400))
    with FakeEngine(server.info.engine_endpoint) as engine:
        assert engine.store(tokens)
        stored = engine.lookup(tokens)
        assert 100 < stored < 400
        assert engine.retrieve(tokens, end=stored * 16) == [engine.content(tokens, chunk) for chunk in range(stored)]
        engine.end()
        other = [7, *tokens]
        deadline = time.monotonic() + 10
        while not engine.lookup(other, "o") and time.monotonic() < deadline:
            engine.end("o")
            assert engine.store(other, end=1600), "eviction made room"
            time.sleep(0.02)
        assert engine.lookup(other, "o") > 0


def test_all_of_l1_is_allocated_from_the_start_on_request(start_server: StartServer) -> None:
    lazy, eager = start_server(l1_init_size_gb=1 / 64), start_server(l1_use_lazy=False)
    for server, expected in ((eager, 64 << 20), (lazy, 16 << 20)):
        path = Path("/dev/shm") / str(server.status()["l1"]["segment"])
        deadline = time.monotonic() + 10
        while server.status()["l1"]["backed_bytes"] < expected and time.monotonic() < deadline:
            time.sleep(0.005)
        assert path.stat().st_blocks * 512 == server.status()["l1"]["backed_bytes"] == expected
        assert not server.status()["l1"]["backing_is_full"]


def test_what_cannot_be_a_number_of_seconds_or_readers_is_refused(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        engine.store(TOKENS)
        for seconds in (float("nan"), float("inf"), -1.0):
            assert engine.scheduler.call(WAIT_PREFETCH_STATUS, "r", seconds) == 0
        key = engine.key(TOKENS, "r", 0, 992, of_worker=False)
        for readers in (2**32, -1, 256):
            engine.scheduler.lookup(msgspec.structs.replace(key, num_kv_readers=readers))
            assert engine.scheduler.query_prefetch_status("r") == 0
        assert engine.lookup(TOKENS, "next") == CHUNKS
        assert server.status()["healthy"]


def test_a_worker_that_leaves_during_its_in_band_commit_writes_into_nobodys_slots(
    server: Server, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It unregisters while the server copies its chunks; another engine stores, and must not find them in its slots."""
    storage = server._parts.tiers.storage
    original, left = type(storage).payload, threading.Event()
    with FakeEngine(endpoint, maps_memory=False) as leaver, FakeEngine(endpoint, model="other") as other:

        def payload(self: object, slot: int) -> memoryview:
            if not left.is_set():
                left.set()
                server._parts.engine_port.workers.unregister(leaver.instance_id, "in the middle")
                assert other.store(TOKENS, end=320)
            return original(self, slot)  # type: ignore[arg-type]

        monkeypatch.setattr(type(storage), "payload", payload)
        assert leaver.store(TOKENS, end=320) is False
        assert left.is_set()
        assert other.retrieve(TOKENS, end=320) == [other.content(TOKENS, chunk) for chunk in range(20)]
        assert other.lookup(TOKENS) == 20
        other.end()
        quiet(server)


def test_a_transfer_that_races_with_its_workers_leaving_holds_nothing(
    server: Server, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = server._parts.tiers.storage
    for verb in ("reserve", "acquire"):
        original = getattr(storage, verb)
        with FakeEngine(endpoint, model=verb) as engine:
            engine.store(TOKENS)

            def leave_first(*arguments: object, call: object = original, who: FakeEngine = engine) -> object:
                server._parts.engine_port.workers.unregister(who.instance_id, "in the middle")
                return call(*arguments)  # type: ignore[operator]

            monkeypatch.setattr(storage, verb, leave_first)
            key = engine.key([5, *TOKENS] if verb == "reserve" else TOKENS, "r", 0, 64)
            if verb == "reserve":
                assert engine.worker.prepare_store(key, engine.instance_id).context.slots == ()
            else:
                assert engine.worker.prepare_retrieve(key, engine.instance_id).success is False
            monkeypatch.setattr(storage, verb, original)
    quiet(server)
    assert server.status()["modules"]["engine_driven"]["stores_prepared"] == 0
    assert server.status()["modules"]["engine_driven"]["reads_prepared"] == 0


def test_in_band_retrieves_that_are_never_committed_come_to_a_limit(start_server: StartServer) -> None:
    server = start_server(l1_shared_memory=False)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        key = engine.key(TOKENS, "r", 0, 32)
        replies = [engine.worker.prepare_retrieve(key, engine.instance_id).success for _ in range(12)]
        assert replies == [True] * 8 + [False] * 4
        for _ in range(12):
            engine.worker.commit_retrieve(key, engine.instance_id)
        assert engine.worker.prepare_retrieve(key, engine.instance_id).success
        engine.worker.commit_retrieve(key, engine.instance_id)
    quiet(server)


def test_in_band_retrieves_that_were_refused_hold_nothing(start_server: StartServer) -> None:
    """A worker must not run out of retrieves by asking for too many."""
    server = start_server(l1_shared_memory=False)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        key = engine.key(TOKENS, "r", 0, 32)
        for _ in range(3):
            replies = [engine.worker.prepare_retrieve(key, engine.instance_id).success for _ in range(12)]
            assert replies == [True] * 8 + [False] * 4
            for _ in range(12):
                engine.worker.commit_retrieve(key, engine.instance_id)
            assert server.status()["modules"]["engine_driven"]["reads_prepared"] == 0
            assert server.status()["l1"]["held"] == 0
    quiet(server)


def test_a_retrieve_whose_bytes_cannot_be_read_holds_nothing(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(l1_shared_memory=False)
    with FakeEngine(server.info.engine_endpoint) as engine:
        engine.store(TOKENS)
        key = engine.key(TOKENS, "r", 0, 32)

        def broken(slot: int) -> memoryview:
            raise OSError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(server._parts.tiers.storage, "payload", broken)
            assert not engine.worker.prepare_retrieve(key, engine.instance_id).success
        engine.worker.commit_retrieve(key, engine.instance_id)
        assert server.status()["modules"]["engine_driven"]["reads_prepared"] == 0
        assert server.status()["l1"]["held"] == 0
        assert engine.worker.prepare_retrieve(key, engine.instance_id).success
        engine.worker.commit_retrieve(key, engine.instance_id)
    quiet(server)
