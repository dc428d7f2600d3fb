"""Workers that always map L1: `register_worker` and `abandon_store`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.tests.server.conftest import StartServer
from core.tests.server.test_engine_driven import CHUNKS, TOKENS, quiet
from lmcache_client.messages import LayoutPart, PrepareStoreReply, SharedMemoryOffer, WorkerRegistration
from lmcache_client.operations import ABANDON_STORE, REGISTER_WORKER, UNREGISTER_ENGINE_DRIVEN
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

PART = LayoutPart(1, 2, 16, 64, "float32", block_slots=16)


def mapping(engine: FakeEngine, *parts: LayoutPart, worker_id: int = 0, world_size: int = 1) -> SharedMemoryOffer:
    """Register the engine's worker by our own operation, in place of the stock one."""
    described = WorkerRegistration(engine.instance_id, "model", world_size, worker_id, parts)
    offer = engine.worker.call(REGISTER_WORKER, described)
    assert isinstance(offer, SharedMemoryOffer)
    return offer


def test_one_part_makes_the_objects_of_the_stock_registration(endpoint: str) -> None:
    with FakeEngine(endpoint) as stock:
        ours = FakeEngine(endpoint)
        offer = mapping(ours, PART)
        assert offer.shm_name
        stock.store(TOKENS)
        assert ours.lookup(TOKENS) == CHUNKS
        reply = ours.worker.prepare_retrieve(ours.key(TOKENS, "r", 0, 32), ours.instance_id)
        assert reply.success
        assert reply.data == b""  # nothing in-band, though it has not shown yet that it maps
        ours.worker.commit_retrieve(ours.key(TOKENS, "r", 0, 32), ours.instance_id)
        ours.close()


@pytest.mark.parametrize(
    "other", [LayoutPart(1, 2, 16, 64, "float32"), replace(PART, block_slots=8), replace(PART, order="a")]
)
def test_chunks_of_other_blocks_and_orders_are_not_a_hit(endpoint: str, other: LayoutPart) -> None:
    first, second = FakeEngine(endpoint), FakeEngine(endpoint)
    assert mapping(first, PART).shm_name
    assert first.store(TOKENS)
    first.worker.call(UNREGISTER_ENGINE_DRIVEN, first.instance_id)
    assert mapping(second, other).shm_name
    assert second.lookup(TOKENS) == 0
    assert not second.worker.prepare_retrieve(second.key(TOKENS, "r", 0, 32), second.instance_id).success
    first.close()
    second.close()


def test_several_parts_are_one_flat_object(endpoint: str) -> None:
    ours = FakeEngine(endpoint)
    parts = (PART, LayoutPart(2, 1, 16, 8, "bfloat16"))
    assert mapping(ours, *parts).shm_name
    slots = ours.worker.prepare_store(ours.key(TOKENS, "r", 0, 32), ours.instance_id).context.slots
    assert isinstance(slots, tuple)
    payload = 2 * 16 * 64 * 4 + 2 * 1 * 16 * 8 * 2
    assert [(slot.length, slot.shape, slot.dtype) for slot in slots] == [(payload, (payload,), "uint8")] * 2
    ours.close()


def test_an_abandoned_store_publishes_nothing_and_holds_nothing(server: Server, endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        key = engine.key(TOKENS, "r", 0, 992)
        engine.worker.prepare_store(key, engine.instance_id)
        assert server.status()["l1"]["held"] == CHUNKS
        assert engine.worker.call(ABANDON_STORE, key, engine.instance_id) is True
        quiet(server)
        assert engine.worker.call(ABANDON_STORE, key, engine.instance_id) is False
        assert engine.worker.commit_store(key, engine.instance_id) is False
        assert engine.lookup(TOKENS) == 0
        assert engine.store(TOKENS)  # by then the slots can be had again
        assert engine.lookup(TOKENS) == CHUNKS


def test_abandoning_for_an_unknown_worker_does_nothing(endpoint: str) -> None:
    with FakeEngine(endpoint) as engine:
        assert isinstance(engine.worker.prepare_store(engine.key(TOKENS, "r", 0, 32), 77), PrepareStoreReply)
        assert engine.worker.call(ABANDON_STORE, engine.key(TOKENS, "r", 0, 32), 77) is False


@pytest.mark.parametrize(
    ("parts", "worker_id", "reason"),
    [
        ((), 0, "without layers"),
        ((LayoutPart(3, 2, 16, 64, "float32"),), 0, "not the shape"),
        ((LayoutPart(1, 2, 16, 64, "complex64"),), 0, "complex64"),
        ((LayoutPart(1, 2**31, 16, 2**40, "float32"),), 0, "too large"),
        ((PART,), 1, "worker"),
        ((PART,), -1, "worker"),
        ((PART,) * 65, 0, "65 regions"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_reason(
    server: Server, endpoint: str, parts: tuple[LayoutPart, ...], worker_id: int, reason: str
) -> None:
    ours = FakeEngine(endpoint)
    assert mapping(ours, *parts, worker_id=worker_id) == SharedMemoryOffer()
    refused = server.status()["modules"]["engine_driven"]["registrations_refused"]
    assert any(reason in why for why in refused), refused
    ours.close()


def test_without_shared_memory_it_is_refused(start_server: StartServer) -> None:
    server = start_server(l1_shared_memory=False)
    ours = FakeEngine(server.info.engine_endpoint)
    assert mapping(ours, PART) == SharedMemoryOffer()
    assert server.status()["workers"] == []
    ours.close()
