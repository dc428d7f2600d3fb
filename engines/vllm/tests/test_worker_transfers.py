"""What a worker stores, it and others can read: byte for byte, over a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.worker_kit import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    HEADS,
    LAYERS,
    WIDTH,
    Paged,
    Rig,
    fused_hnd,
    fused_nhd,
    latent,
    rig,
    separate_planes,
    transfer,
    two_groups,
)
from lmcache_devkit import FakeEngine
from lmcache_vllm.metadata import Transfer
from lmcache_vllm.placement import Placement
from lmcache_vllm.prompt_identity import PromptIdentity

pytestmark = pytest.mark.usefixtures("nothing_stays_held")

TOKENS = list(range(500, 500 + 4 * CHUNK_TOKENS))
OPTIONS = ["--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK_TOKENS), "--eviction-policy", "LRU"]


def quiet(server: ServerProcess) -> bool:
    l1 = server.status()["l1"]
    return (l1["held"], l1["quarantined"]) == (0, 0)


def tables(paged: Paged, first: int, tokens: int) -> list[list[int]]:
    """Blocks for that number of tokens in every group, unordered."""
    found = []
    for group in paged.groups:
        count = tokens // group.block_tokens
        ids = [first + 3 * index % 30 for index in range(count)]
        found.append([*dict.fromkeys(ids), *(x for x in range(first, first + 30) if x not in ids)][:count])
    return found


@pytest.mark.parametrize("make", [fused_hnd, fused_nhd, separate_planes, latent, two_groups])
def test_what_was_stored_comes_back_into_other_blocks(server: ServerProcess, make: Callable[[], Paged]) -> None:
    paged = make()
    salt = make.__name__
    with rig(server.port, paged) as worker:
        there = tables(paged, 1, len(TOKENS))
        before = paged.blocks_of(there)
        worker.store(transfer(TOKENS, there, salt=salt))
        paged.wipe()
        elsewhere = tables(paged, 6, len(TOKENS))
        worker.load(transfer(TOKENS, elsewhere, salt=salt))
        for expected, found in zip(before, paged.blocks_of(elsewhere), strict=True):
            np.testing.assert_array_equal(found, expected)
        untouched = [set(range(len(pages))) for pages in paged.pages.values()]
        names = [name for group in paged.groups for name in group.layer_names]
        table_of = {name: table for table, group in enumerate(paged.groups) for name in group.layer_names}
        for name, blocks in zip(names, untouched, strict=True):
            rest = sorted(set(range(len(paged.pages[name]))) - set(elsewhere[table_of[name]]))
            assert blocks
            assert not paged.pages[name][rest].any()
        assert worker.counts["stores"] == worker.counts["loads"] == 1
        assert worker.counts["store_bytes"] == worker.counts["load_bytes"] == sum(array.nbytes for array in before)
        assert not worker.failed_blocks


@pytest.mark.parametrize("make", [fused_hnd, two_groups])
def test_a_tail_is_read_by_its_own_tokens_alone(server: ServerProcess, make: Callable[[], Paged]) -> None:
    """One and a half chunks: what is behind them in the object is zeros, whatever lay in the blocks."""
    paged, salt = make(), f"tail {make.__name__}"
    end = CHUNK_TOKENS * 3 // 2
    absent = [(CHUNK_TOKENS - end % CHUNK_TOKENS) // group.block_tokens for group in paged.groups]

    def key(tokens: list[int], blocks: list[list[int]]) -> Transfer:
        return replace(
            transfer([0] * 2 * CHUNK_TOKENS, blocks, salt=salt),
            tokens=PromptIdentity(tokens, CHUNK_TOKENS).encoded(len(tokens)),
        )

    with rig(server.port, paged) as worker:
        there, elsewhere = tables(paged, 1, 2 * CHUNK_TOKENS), tables(paged, 6, 2 * CHUNK_TOKENS)
        stored = [[*ids[: len(ids) - none], *[-1] * none] for ids, none in zip(there, absent, strict=True)]
        before = paged.blocks_of([ids[: len(ids) - none] for ids, none in zip(there, absent, strict=True)])
        worker.store(key(TOKENS[:end], stored))
        worker.load(key(TOKENS[:end], elsewhere))
        found = paged.blocks_of([ids[: len(ids) - none] for ids, none in zip(elsewhere, absent, strict=True)])
        for expected, block in zip(before, found, strict=True):
            np.testing.assert_array_equal(block, expected)
        behind = paged.blocks_of([ids[len(ids) - none :] for ids, none in zip(elsewhere, absent, strict=True)])
        assert behind
        assert not any(block.any() for block in behind)
        assert worker.counts["loads"] == 1
        for other in (TOKENS[: end - BLOCK_TOKENS], TOKENS[: end + BLOCK_TOKENS], TOKENS[: 2 * CHUNK_TOKENS]):
            worker.load(key(other, elsewhere))
        assert worker.counts["failed_loads:missing"] == 3


def test_the_stock_connector_reads_the_same_objects_and_the_other_way_round(server: ServerProcess) -> None:
    paged = fused_hnd()
    with (
        rig(server.port, paged) as worker,
        FakeEngine(
            f"tcp://127.0.0.1:{server.port}",
            layers=LAYERS,
            hidden=HEADS * 2 * WIDTH,
            block_tokens=BLOCK_TOKENS,
            salt="stock",
        ) as stock,
    ):
        blocks = tables(paged, 1, len(TOKENS))
        worker.store(transfer(TOKENS, blocks, salt="stock"))
        assert stock.lookup(TOKENS) == 4
        found = stock.retrieve(TOKENS)
        stock.end()
        assert found is not None
        per_chunk = CHUNK_TOKENS // BLOCK_TOKENS
        for chunk, data in enumerate(found):
            ids = blocks[0][chunk * per_chunk : (chunk + 1) * per_chunk]
            expected = [  # [layer][slot][head x row], heads innermost though pages have slots innermost
                paged.pages[f"layer.{layer}"][ids].transpose(0, 2, 1, 3).reshape(CHUNK_TOKENS, -1)
                for layer in range(LAYERS)
            ]
            assert data == np.stack(expected).tobytes()

        other = [token + 7 for token in TOKENS]
        assert stock.store(other)
        worker.load(transfer(other, blocks, salt="stock"))
        first = paged.pages["layer.1"][blocks[0][:per_chunk]].transpose(0, 2, 1, 3)
        layer_bytes = first.nbytes
        assert first.tobytes() == stock.content(other, 0)[layer_bytes : 2 * layer_bytes]


def test_only_what_is_missing_is_stored(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        blocks = tables(paged, 1, len(TOKENS))
        worker.store(transfer(TOKENS, [blocks[0][:4]], end=2 * CHUNK_TOKENS, salt="missing"))
        half = worker.counts["store_bytes"]
        worker.store(transfer(TOKENS, blocks, salt="missing"))
        assert worker.counts["store_bytes"] == 2 * half
        worker.store(transfer(TOKENS, blocks, salt="missing"))
        assert worker.counts["store_bytes"] == 2 * half
        assert worker.counts["stores"] == 3


def test_a_range_in_the_middle_and_blocks_that_must_not_be_written(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        blocks = tables(paged, 1, len(TOKENS))
        before = paged.blocks_of(blocks)
        worker.store(transfer(TOKENS, blocks, salt="middle"))
        paged.wipe()
        kept = [0, *range(31, 34)]
        worker.load(transfer(TOKENS, [kept], start=CHUNK_TOKENS, end=3 * CHUNK_TOKENS, salt="middle"))
        for layer, pages in enumerate(paged.pages.values()):
            np.testing.assert_array_equal(pages[31:34], before[layer][3:6])
            assert not pages[0].any()
            assert not pages[1:31].any()


def test_a_miss_names_its_blocks_and_only_those(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        before = {name: pages.copy() for name, pages in paged.pages.items()}
        worker.load(transfer(TOKENS, [[0, 0, *range(5, 11)]], request="lost", salt="nowhere"))
        assert worker.received == ["lost"]
        assert worker.failed_blocks == set(range(5, 11))
        assert worker.failed_requests == set()
        assert worker.counts["failed_loads:missing"] == 1
        for name, pages in paged.pages.items():
            np.testing.assert_array_equal(pages, before[name])


def test_with_a_window_a_miss_names_the_request(server: ServerProcess) -> None:
    """vLLM would take the tokens before the window for computed, although it has no blocks for them."""
    paged = fused_hnd()
    windowed = replace(paged, groups=(replace(paged.groups[0], window_tokens=48),))
    with rig(server.port, windowed) as worker:
        worker.load(transfer(TOKENS, [[0, 0, 0, 0, 0, 6, 7, 8]], salt="window"))
        assert worker.failed_requests == {"r"}
        assert worker.failed_blocks == set()


def test_with_several_tables_a_miss_names_the_request(server: ServerProcess) -> None:
    paged = two_groups()
    with rig(server.port, paged) as worker:
        worker.load(transfer(TOKENS, tables(paged, 1, len(TOKENS)), request="lost", salt="nowhere"))
        assert worker.failed_requests == {"lost"}
        assert worker.failed_blocks == set()


def test_a_finishing_request_is_named_once_when_its_stores_are_over(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        blocks = tables(paged, 1, len(TOKENS))
        stored = transfer(TOKENS, blocks, request="a", salt="finishing")
        worker.step(stores=(stored,))
        worker.step(finishing=("a", "b"))
        assert worker.until(lambda: sorted(worker.sent) == ["a", "b"])
        assert stored.id in worker.over
        for _ in range(3):
            worker.step()
        assert (sorted(worker.sent), worker.over[stored.id]) == (["a", "b"], 1)


def test_a_reader_of_another_ones_shard_stores_nothing_and_says_so(server: ServerProcess) -> None:
    paged = latent()
    reader = Placement("model", 1, 0, readers=2, writes=False)
    with rig(server.port, paged) as writer, rig(server.port, latent(), placement=reader) as worker:
        stored = transfer(TOKENS, tables(paged, 1, len(TOKENS)), salt="readers")
        worker.step(stores=(stored,), finishing=("r",))
        assert worker.over == {stored.id: 1}
        assert worker.sent == ["r"]
        assert "stores" not in worker.counts
        writer.store(stored)
        worker.load(transfer(TOKENS, tables(paged, 1, len(TOKENS)), salt="readers"))
        assert worker.counts["loads"] == 1


def test_each_shard_has_its_own_bytes(server: ServerProcess) -> None:
    ones, twos = fused_hnd(), fused_hnd()
    blocks = tables(ones, 1, len(TOKENS))
    for paged, value in ((ones, 1), (twos, 2)):
        for pages in paged.pages.values():
            pages[...] = value
    with (
        rig(server.port, ones, placement=Placement("model", 2, 0)) as zero,
        rig(server.port, twos, placement=Placement("model", 2, 1)) as one,
    ):
        zero.store(transfer(TOKENS, blocks, salt="shards"))
        one.load(transfer(TOKENS, blocks, salt="shards"))
        assert one.counts["failed_loads:missing"] == 1
        one.store(transfer(TOKENS, blocks, salt="shards"))
        ones.wipe()
        twos.wipe()
        zero.load(transfer(TOKENS, blocks, salt="shards"))
        one.load(transfer(TOKENS, blocks, salt="shards"))
        for paged, value in ((ones, 1), (twos, 2)):
            assert all((pages[blocks[0]] == value).all() for pages in paged.pages.values())


def test_stores_and_loads_run_beside_each_other(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        prompts = [[1000 * number + token for token in TOKENS] for number in range(12)]
        blocks = tables(paged, 1, len(TOKENS))
        before = paged.blocks_of(blocks)
        for number, prompt in enumerate(prompts):
            loads = (transfer(prompts[number - 2], [list(range(31, 39))], request=f"load{number}", salt="both"),)
            stores = (transfer(prompt, blocks, request=f"store{number}", salt="both"),)
            worker.step(stores=stores, loads=loads if number >= 2 else ())
        assert worker.until(lambda: len(worker.received) == 10 and len(worker.over) == 22)
        assert worker.until(lambda: worker.counts.get("stores") == 12)
        loaded = transfer(prompts[3], [list(range(31, 39))], request="last", salt="both")
        worker.load(loaded)
        for expected, found in zip(before, paged.blocks_of([list(range(31, 39))]), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_pages_that_are_not_understood_leave_the_engine_uncached(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    paged = fused_hnd()
    raw = {name: type(tensor)(tensor.array.reshape(-1), tensor.array) for name, tensor in paged.tensors.items()}
    with rig(server.port, Paged(raw, paged.groups, paged.pages)) as worker:
        assert "is not cached" in caplog.text
        failing(worker, "no_server")


def test_a_chunk_that_is_not_whole_blocks_leaves_the_engine_uncached(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    storage = np.zeros((4, HEADS, 3 * CHUNK_TOKENS, 2 * WIDTH), "float32")
    tensor: Any = fused_hnd().tensors["layer.0"].__class__(storage, storage)
    group = fused_hnd().groups[0].__class__(("layer.0",), 3 * CHUNK_TOKENS)
    with rig(server.port, Paged({"layer.0": tensor}, (group,), {"layer.0": storage}, "HND")) as worker:
        assert "multiple of the engine's block size" in caplog.text
        failing(worker, "no_server")


def failing(worker: Rig, reason: str) -> None:
    """A load and a store end at once, for this reason."""
    worker.step(
        loads=(transfer(TOKENS, [[*range(1, 9)]], request="lost"),),
        stores=(transfer(TOKENS, [[*range(1, 9)]], request="kept"),),
        finishing=("kept",),
    )
    assert (worker.received, worker.sent) == (["lost"], ["kept"])
    assert worker.failed_blocks == set(range(1, 9))
    assert worker.counts[f"failed_loads:{reason}"] == worker.counts[f"failed_stores:{reason}"] == 1


def test_a_server_of_another_chunk_size_gets_nothing(server: ServerProcess) -> None:
    with rig(server.port, fused_hnd()) as worker:
        blocks = [[*range(1, 9)]]
        store, load = (transfer(TOKENS, blocks, chunk_tokens=64) for _ in range(2))
        worker.step(stores=(store,), loads=(load,))
        assert worker.until(lambda: worker.counts.get("failed_stores:chunk_size") == 1)
        assert worker.until(lambda: worker.counts.get("failed_loads:chunk_size") == 1)


def test_block_ids_that_do_not_fit_are_refused_before_anything_is_asked(server: ServerProcess) -> None:
    with rig(server.port, fused_hnd()) as worker:
        worker.store(transfer(TOKENS, [[1, 2, 3]]))
        worker.store(transfer(TOKENS, []))
        worker.load(transfer(TOKENS, [[1, 2, 3]]))
        assert worker.failed_blocks == {1, 2, 3}
        assert (worker.counts["failed_stores:refused"], worker.counts["failed_loads:refused"]) == (2, 1)
        worker.store(transfer(TOKENS, [[0, *range(2, 9)]], salt="null"))
        worker.store(transfer(TOKENS, [[4000, *range(2, 9)]], salt="null"))
        assert worker.counts["failed_stores:copy"] == 2
        worker.load(transfer(TOKENS, [[*range(1, 9)]], request="x", salt="null"))
        assert worker.counts["failed_loads:missing"] == 1  # nothing of a store that failed was published
