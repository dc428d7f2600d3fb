"""What schedulers report of the blocks of their own cache becomes events, where a subscriber wants them."""

from __future__ import annotations

from array import array

import pytest

from lmcache_client.messages import BlockAllocation
from lmcache_core.app.server import Server
from lmcache_core.contracts.events import BlocksAllocated
from lmcache_devkit.event_recorder import EventRecorder
from lmcache_devkit.fake_engine import FakeEngine


@pytest.fixture
def events(server: Server, monkeypatch: pytest.MonkeyPatch) -> EventRecorder:
    recorder = EventRecorder()
    context = server._parts.engine_port.modules["management"]._context  # type: ignore[attr-defined]
    monkeypatch.setattr(context.events, "wants", recorder.wants)
    monkeypatch.setattr(context.events, "publish", recorder.publish)
    return recorder


def test_each_record_is_an_event(endpoint: str, events: EventRecorder) -> None:
    tokens = list(range(40))
    records = [
        BlockAllocation("r1", [5, 6, 7], tokens),
        BlockAllocation("r2", [8], tokens[:14]),
        BlockAllocation("r3", [], []),
        BlockAllocation("r4", [9], []),
    ]
    with FakeEngine(endpoint) as engine:
        engine.scheduler.report_block_allocation(42, "m", records)
    first, second, third = events.of(BlocksAllocated)
    assert (first.process_id, first.model_name, first.request_id) == (42, "m", "r1")
    assert array("q", first.block_ids).tolist() == [5, 6, 7]
    hashes = [first.content_hashes[at : at + 8] for at in range(0, 24, 8)]
    assert len(set(hashes)) == 3
    assert second.content_hashes == hashes[0], "the same tokens"
    assert (third.request_id, len(third.content_hashes)) == ("r4", 8)


def test_numbers_that_no_engine_has_are_refused(endpoint: str, events: EventRecorder) -> None:
    with FakeEngine(endpoint) as engine:
        engine.scheduler.report_block_allocation(42, "m", [BlockAllocation("r", [2**63], [1])])
        engine.scheduler.report_block_allocation(42, "m", [BlockAllocation("r" * 2000, [1], [1])])
        assert events.of(BlocksAllocated) == []
        assert engine.scheduler.get_chunk_size() == 16
