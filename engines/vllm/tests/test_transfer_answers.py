"""Answers that make no sense: nothing is copied where it does not belong, and nothing half written is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.test_worker_transfers import OPTIONS, TOKENS, quiet
from engines.vllm.tests.worker_kit import fused_hnd, rig, transfer, until
from lmcache_client import (
    EngineChannel,
    PrepareRetrieveReply,
    PrepareStoreReply,
    RetrieveContext,
    SlotDescriptor,
    StoreContext,
)

BLOCKS = [[*range(1, 9)]]
PAYLOAD = 3 * 32 * 2 * 16 * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(OPTIONS, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


def slot(offset: int, length: int = PAYLOAD) -> SlotDescriptor:
    return SlotDescriptor(offset, length, (length,), "uint8")


@pytest.mark.parametrize(
    "context",
    [
        StoreContext((slot(1 << 40),), (0,)),
        StoreContext((slot(-PAYLOAD),), (0,)),
        StoreContext((slot(4096, PAYLOAD - 1),), (0,)),
        StoreContext((slot(4096), slot(1 << 20)), (0,)),
        StoreContext((slot(4096), slot(1 << 20)), (1, 1)),
        StoreContext((slot(4096),), (4,)),
        StoreContext((slot(4096),), (-1,)),
    ],
)
def test_slots_that_cannot_be_filled_are_given_back(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, context: StoreContext
) -> None:
    real = EngineChannel.prepare_store

    def wrong(self: EngineChannel, *args: Any) -> PrepareStoreReply:
        real(self, *args)  # the server has leased something
        return PrepareStoreReply(context)

    with rig(server.port, fused_hnd()) as worker:
        monkeypatch.setattr(EngineChannel, "prepare_store", wrong)
        worker.store(transfer(TOKENS, BLOCKS))
        monkeypatch.undo()
        assert worker.counts["failed_stores:copy"] == 1
        assert until(lambda: quiet(server)), server.status()["l1"]
        worker.load(transfer(TOKENS, BLOCKS))
        assert worker.counts["failed_loads:missing"] == 1


@pytest.mark.parametrize(
    "context",
    [
        RetrieveContext(),
        RetrieveContext((slot(4096),)),
        RetrieveContext((slot(4096),) * 3 + (slot(1 << 40),)),
        RetrieveContext((slot(4096),) * 3 + (slot(4096, 16),)),
    ],
)
def test_slots_that_cannot_be_read_fail_the_load(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, context: RetrieveContext
) -> None:
    monkeypatch.setattr(EngineChannel, "prepare_retrieve", lambda *args: PrepareRetrieveReply(True, b"", context))
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        before = paged.blocks_of(BLOCKS)
        worker.load(transfer(TOKENS, BLOCKS))
        assert worker.failed_blocks == set(BLOCKS[0])
        assert worker.counts["failed_loads:refused"] == 1
        for expected, found in zip(before, paged.blocks_of(BLOCKS), strict=True):
            assert (expected == found).all()
