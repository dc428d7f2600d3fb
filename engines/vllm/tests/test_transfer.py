"""Stores and loads without vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.test_worker_transfers import OPTIONS, TOKENS
from engines.vllm.tests.worker_kit import CHUNK_TOKENS, fused_hnd, transfer
from lmcache_client import LMCacheError
from lmcache_devkit import free_port
from lmcache_kv_layout import LayoutError
from lmcache_vllm import transfer as transfer_module
from lmcache_vllm.placement import CacheGroup, Placement
from lmcache_vllm.transfer import BlockTransfers

PLACE = Placement("model", 1, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(OPTIONS, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


def test_a_store_is_visible_when_it_returns(server: ServerProcess) -> None:
    paged = fused_hnd()
    url = f"tcp://127.0.0.1:{server.port}"
    with BlockTransfers(url, PLACE, paged.tensors, paged.groups, kv_layout="HND") as one:
        assert one.chunk_tokens == CHUNK_TOKENS
        stored = one.store(transfer(TOKENS, [[*range(1, 9)]]))
        assert (stored.bytes, stored.failure) == (4 * one.chunk_bytes, "")
        with BlockTransfers(url, PLACE, paged.tensors, paged.groups, kv_layout="HND", copy_threads=2) as other:
            loaded = other.load(transfer(TOKENS, [[*range(11, 19)]]))
        assert (loaded.bytes, loaded.failure) == (4 * one.chunk_bytes, "")
        for pages in paged.pages.values():
            np.testing.assert_array_equal(pages[11:19], pages[1:9])
        missing = one.load(transfer(TOKENS, [[*range(11, 19)]], salt="nowhere"))
        assert (missing.failure, missing.failed_chunks) == ("missing", range(4))
    assert server.status()["workers"] == []


def test_without_a_server_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "START_SECONDS", 0.2)
    monkeypatch.setattr("lmcache_vllm.transfer_session.REGISTER_SECONDS", 0.1)
    paged, url = fused_hnd(), f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(LMCacheError, match=rf"no cache at {url}: no server that this connector understands"):
        BlockTransfers(url, PLACE, paged.tensors, paged.groups, kv_layout="HND", timeout_seconds=0.2)


def test_pages_that_are_not_understood_are_an_error(server: ServerProcess) -> None:
    paged = fused_hnd()
    with pytest.raises(LayoutError, match="pages of 16 slots"):
        BlockTransfers(
            f"tcp://127.0.0.1:{server.port}",
            PLACE,
            paged.tensors,
            (CacheGroup(tuple(paged.tensors), 32),),
            kv_layout="HND",
        )
