"""Right bytes from every tier, whichever way they came and go."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from plugins.transfer_torch.tests.conftest import StartServer, endpoint_of
from plugins.transfer_torch.tests.driven_engine import (
    BLOCK_TOKENS,
    EVENT,
    GARBAGE,
    HEAD_BYTES,
    HEADS,
    LAYERS,
    DrivenEngine,
    KernelGroup,
)

TOKENS = list(range(1000, 1000 + 100))
CHUNKS, PER_CHUNK = 6, 16 // BLOCK_TOKENS


def module_status(server: ServerProcess) -> dict[str, Any]:
    status: dict[str, Any] = server.status()["modules"]["lmcache_driven"]
    return status


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "that did not happen in time"
        time.sleep(0.02)


def fs(folder: Path) -> tuple[str, str]:
    return "--l2-adapter", json.dumps({"type": "fs", "base_path": str(folder)})


def test_what_was_stored_comes_back_and_is_counted(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.lookup(TOKENS) == 0
        blocks = engine.blocks(CHUNKS)
        engine.fill(TOKENS, blocks)
        assert engine.store_blocks(TOKENS, [blocks]) == (EVENT, True)
        assert engine.store_blocks(TOKENS, [blocks]) == (b"", True)  # all of it is there
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve(TOKENS, first_block=30) == engine.right(TOKENS)
        status = module_status(server)
        moved = CHUNKS * engine.fake.layout.payload_bytes
        assert (status["workers"], status["stored_bytes"], status["retrieved_bytes"]) == (1, moved, moved)
        assert (status["transfers_in_flight"], status["transfers_failed"]) == (0, 0)
        engine.unregister()
        assert module_status(server)["workers"] == 0
        assert engine.lookup(TOKENS) == 0  # no registered worker could read it
    l1 = server.status()["l1"]
    assert (l1["held"], l1["quarantined"]) == (0, 0)


def test_parts_of_a_prompt_are_stored_and_read_by_themselves(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server)) as engine:
        first, rest = engine.blocks(2), engine.blocks(4, 20)
        engine.fill(TOKENS, first)
        engine.fill(TOKENS, rest, start=32)
        assert engine.store_blocks(TOKENS, [first], end=32)[1]
        assert engine.store_blocks(TOKENS, [rest], start=32)[1]
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve_blocks(TOKENS, [engine.blocks(2, 50)], start=64, end=96)[1]
        (group,) = engine.groups
        assert group.read(engine.blocks(1, 50)) == engine.content(TOKENS, 4)
        assert group.read(engine.blocks(1, 54)) == engine.content(TOKENS, 5)


def test_a_miss_in_the_middle_moves_nothing(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server)) as engine:
        for start in (0, 64):
            blocks = engine.blocks(2)
            engine.fill(TOKENS, blocks, start)
            assert engine.store_blocks(TOKENS, [blocks], start=start, end=start + 32)[1]
        assert engine.retrieve(TOKENS) is None
        assert engine.groups[0].read([1, 2, 3, 4]) == bytes([GARBAGE]) * engine.fake.layout.payload_bytes
        assert server.status()["l1"]["held"] == 0


@pytest.mark.parametrize("skip", [0, 3, 4, 7, 9, 15, 16, 17, 96])
def test_what_the_engine_has_already_is_not_written(server: ServerProcess, skip: int) -> None:
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.store(TOKENS)
        (group,) = engine.groups
        group.wipe()
        blocks = engine.blocks(CHUNKS, 30)
        assert engine.retrieve_blocks(TOKENS, [blocks], skip=skip)[1]
        whole = b"".join(engine.content(TOKENS, chunk) for chunk in range(CHUNKS))
        assert len(whole) == CHUNKS * group.object_bytes(16)
        kept = skip // BLOCK_TOKENS
        nothing = bytes([GARBAGE]) * group.object_bytes(BLOCK_TOKENS)
        assert [group.read([block]) == nothing for block in blocks] == [at < kept for at in range(len(blocks))]
        for chunk in range(-(-kept // PER_CHUNK), CHUNKS):
            assert group.read(blocks[chunk * PER_CHUNK :][:PER_CHUNK]) == engine.content(TOKENS, chunk)


def test_from_l2_after_the_server_was_killed(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(*fs(tmp_path / "kv"))
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.store(TOKENS)
        wait_for(lambda: stored(tmp_path) == CHUNKS)
        server.kill()
        server.start()
        assert engine.retrieve_blocks(TOKENS, [engine.blocks(CHUNKS)]) == (b"", False)
        assert engine.lookup(TOKENS) == 0
        engine.register()
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve(TOKENS, first_block=31) == engine.right(TOKENS)


def stored(folder: Path) -> int:
    return sum(1 for path in (folder / "kv").rglob("*.kv") if ".tmp" not in path.parts)


def test_both_ways_of_transfer_find_what_the_other_stored(server: ServerProcess) -> None:
    with (
        DrivenEngine(endpoint_of(server)) as driven,
        FakeEngine(endpoint_of(server), block_tokens=BLOCK_TOKENS) as copying,
    ):
        other = [token + 5000 for token in TOKENS]
        assert driven.store(TOKENS)
        assert copying.store(other)
        assert (copying.lookup(TOKENS), driven.lookup(other)) == (CHUNKS, CHUNKS)
        assert copying.retrieve(TOKENS) == driven.right(TOKENS)[0]
        assert driven.retrieve(other) == driven.right(other)


def test_two_workers_and_tenants_do_not_see_each_other(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server)) as one, DrivenEngine(endpoint_of(server), salt="s") as other:
        assert one.store(TOKENS)
        assert other.lookup(TOKENS) == 0
        assert other.retrieve(TOKENS) is None
        assert other.store(TOKENS)
        assert other.retrieve(TOKENS) == other.right(TOKENS)
        assert other.right(TOKENS) != one.right(TOKENS)
        assert one.retrieve(TOKENS) == one.right(TOKENS)


def test_a_worker_that_registers_again_is_read_where_it_is_now(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.store(TOKENS)
        old, engine.groups = engine.groups, [KernelGroup()]
        engine.register()
        assert module_status(server)["workers"] == 1
        assert engine.retrieve(TOKENS) == engine.right(TOKENS)
        for segment in old[0].segments:
            assert segment.name not in Path(f"/proc/{server.pid}/maps").read_text()
            segment.close()


def test_two_processes_with_one_id_do_not_mix_their_pages(server: ServerProcess) -> None:
    """As with clients whose id is that of their process, in two containers.  The one that comes second while the first is
    connected runs uncached, and nothing that it says touches the first."""
    others = [token + 5000 for token in TOKENS]
    with DrivenEngine(endpoint_of(server)) as one, closing(DrivenEngine(endpoint_of(server))) as other:
        other.instance_id = one.instance_id
        other.register()
        assert not other.store(TOKENS, first_block=31)
        assert one.store(others)
        assert other.retrieve(others, first_block=31) is None
        other.unregister()
        assert one.retrieve(others) == one.right(others)
        assert one.lookup(TOKENS) == 0
        (reason,) = module_status(server)["registrations_refused"]
        assert f"instance {one.instance_id} is another process" in reason


def test_a_process_does_not_inherit_the_pages_of_a_dead_one_with_its_id(server: ServerProcess) -> None:
    with closing(DrivenEngine(endpoint_of(server))) as other:
        with DrivenEngine(endpoint_of(server)) as one:
            other.instance_id = one.instance_id
            blocks = one.blocks(CHUNKS)
            one.fill([token + 5000 for token in TOKENS], blocks)
            other.register()
        other.fill(TOKENS, blocks)
        wait_for(lambda: not other.store(TOKENS) and not other.fake.worker.ping(other.instance_id))
        assert other.lookup(TOKENS) == 0
        other.register()
        assert other.store(TOKENS)
        assert other.retrieve(TOKENS) == other.right(TOKENS)


def test_other_null_blocks(start_server: StartServer) -> None:
    server = start_server("--null-block-id", "7")
    with DrivenEngine(endpoint_of(server)) as engine:
        blocks = [block for block in range(1, 30) if block != 7][: CHUNKS * PER_CHUNK]
        engine.fill(TOKENS, blocks)
        assert engine.store_blocks(TOKENS, [[*blocks[:-1], 7]])[1]
        assert engine.lookup(TOKENS) == CHUNKS - 1
        assert server.status()["modules"]["lmcache_driven"]["stored_bytes"] == 5 * engine.fake.layout.payload_bytes


# Several kernel groups.


def test_kernel_groups_share_an_object(server: ServerProcess) -> None:
    with DrivenEngine(endpoint_of(server), [KernelGroup(), KernelGroup(1, 4, window=32)]) as engine:
        assert engine.store(TOKENS)
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve(TOKENS) == engine.right(TOKENS)
        (worker,) = server.status()["workers"]
        assert worker["layout"] == "float32[2, 16, 64] in blocks of 4 + float32[1, 16, 128] in blocks of 4"
        assert module_status(server)["stored_bytes"] == CHUNKS * (LAYERS * HEADS + 4) * HEAD_BYTES * 16


def test_chunks_with_gaps_are_not_stored(server: ServerProcess) -> None:
    """An engine has no blocks behind a window any more: a prefix that ends there cannot be used."""
    with DrivenEngine(endpoint_of(server), [KernelGroup(), KernelGroup(1, 4, window=32)]) as engine:
        blocks = engine.blocks(CHUNKS)
        engine.fill(TOKENS, blocks)
        windowed = [0] * 9 + blocks[9:]  # two chunks, and one block of the third
        assert engine.store_blocks(TOKENS, [blocks, windowed])[1]
        assert engine.lookup(TOKENS) == 0
        assert engine.store_blocks(TOKENS, [blocks, blocks])[1]
        assert engine.retrieve(TOKENS) == engine.right(TOKENS)


def test_windowed_groups_apart_need_the_end_of_a_prefix_only(start_server: StartServer) -> None:
    server = start_server("--separate-object-groups")
    with DrivenEngine(endpoint_of(server), [KernelGroup(), KernelGroup(1, 4, window=32)]) as engine:
        blocks = engine.blocks(CHUNKS)
        engine.fill(TOKENS, blocks)
        windowed = [0] * 9 + blocks[9:]
        assert engine.store_blocks(TOKENS, [blocks, windowed])[1]
        assert engine.lookup(TOKENS) == CHUNKS  # two chunks of the window are enough
        full, window = engine.groups
        for group in engine.groups:
            group.wipe()
        assert engine.retrieve_blocks(TOKENS, [blocks, [0] * 16 + blocks[16:]])[1]
        for chunk in range(CHUNKS):
            ids = blocks[chunk * PER_CHUNK :][:PER_CHUNK]
            assert full.read(ids) == engine.content(TOKENS, chunk)
            right = engine.content(TOKENS, chunk, 1) if chunk >= 4 else bytes([GARBAGE]) * window.object_bytes(16)
            assert window.read(ids) == right
        assert engine.lookup(TOKENS[:64], "shorter") == 0  # one of its two chunks has no window
        assert server.status()["l1"]["quarantined"] == 0


def test_a_window_within_a_chunk_keeps_only_its_blocks(start_server: StartServer) -> None:
    server = start_server("--separate-object-groups")
    with DrivenEngine(endpoint_of(server), [KernelGroup(), KernelGroup(1, 4, window=8)]) as engine:
        blocks = engine.blocks(CHUNKS)
        engine.fill(TOKENS, blocks)
        windowed = [block if at % PER_CHUNK >= 2 else 0 for at, block in enumerate(blocks)]
        assert engine.store_blocks(TOKENS, [blocks, windowed])[1]
        assert engine.lookup(TOKENS) == CHUNKS
        layouts = server.status()["workers"][0]["layout"]
        assert layouts == "float32[2, 16, 64] in blocks of 4, float32[1, 8, 128] in blocks of 4"
        _, window = engine.groups
        window.wipe()
        assert engine.retrieve_blocks(TOKENS, [blocks, blocks])[1]
        untouched = bytes([GARBAGE]) * window.object_bytes(8)
        assert window.read(blocks[-4:-2]) == untouched
        assert window.read(blocks[-2:]) == engine.content(TOKENS, 5, 1)[window.object_bytes(8) :]


def test_recurrent_states_are_kept_where_the_engine_has_them(start_server: StartServer) -> None:
    server = start_server("--separate-object-groups")
    groups = [KernelGroup(), KernelGroup(1, 4, window=BLOCK_TOKENS, recurrent=True)]
    with DrivenEngine(endpoint_of(server), groups) as engine:
        blocks = engine.blocks(CHUNKS)
        engine.fill(TOKENS, blocks)
        states = [block if at in (15, 23) else 0 for at, block in enumerate(blocks)]  # behind chunks 4 and 6
        assert engine.store_blocks(TOKENS, [blocks, states])[1]
        assert engine.lookup(TOKENS, "all") == 6
        assert engine.lookup(TOKENS[:80], "less") == 4
        groups[1].wipe()
        assert engine.retrieve_blocks(TOKENS, [blocks[:16], [0] * 15 + [40]], "less", end=64)[1]
        assert groups[1].read([40]) == engine.content(TOKENS, 3, 1)[-groups[1].object_bytes(BLOCK_TOKENS) :]


# Without this distribution, or without its part


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (("--no-plugin", "transfer_torch"), "pip install lmcache-transfer-torch and start the server again"),
        (("--supported-transfer-mode", "engine_driven"), "start the server with --supported-transfer-mode auto"),
    ],
)
def test_an_engine_that_asks_in_vain_runs_uncached(start_server: StartServer, flags: list[str], remedy: str) -> None:
    server = start_server(*flags)
    engine = DrivenEngine(endpoint_of(server))
    engine.register()
    blocks = [engine.blocks(CHUNKS)]
    assert engine.store_blocks(TOKENS, blocks) == engine.retrieve_blocks(TOKENS, blocks) == (b"", False)
    assert engine.lookup(TOKENS) == 0
    engine.close()
    unhandled = server.status()["requests"]["unhandled"]
    assert {name: row["count"] for name, row in unhandled.items()} == {
        "register_kv_cache": 1, "store": 1, "retrieve": 1,
    }  # fmt: skip
    assert remedy in unhandled["register_kv_cache"]["remedy"]
    assert server.logs("runs uncached operation=register_kv_cache remedy=")


def test_a_worker_that_falls_silent_is_unmapped(start_server: StartServer) -> None:
    server = start_server("--worker-reap-timeout-seconds", "1")
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.store(TOKENS)
        assert engine.fake.worker.ping(engine.instance_id)
        maps = Path(f"/proc/{server.pid}/maps")
        names = [segment.name for segment in engine.groups[0].segments]
        assert all(name in maps.read_text() for name in names)
        wait_for(lambda: not any(name in maps.read_text() for name in names))
        assert module_status(server)["workers"] == 0
        assert engine.retrieve(TOKENS) is None
        assert engine.fake.worker.ping(engine.instance_id) is False  # register again
        engine.register()
        assert engine.retrieve(TOKENS) == engine.right(TOKENS)


def test_one_head_of_keys_and_values_is_cached(server: ServerProcess) -> None:
    """Multi-query attention: distinguished from latent attention by what lies in the blocks of its first store."""
    with DrivenEngine(endpoint_of(server), [KernelGroup(heads=1)], model="one head", hidden=32) as engine:
        assert module_status(server)["workers_before_their_first_store"] == 1
        assert engine.lookup(TOKENS) == 0
        assert engine.retrieve(TOKENS) is None
        assert engine.store(TOKENS)
        assert module_status(server)["workers_before_their_first_store"] == 0
        assert engine.lookup(TOKENS) == CHUNKS
        assert engine.retrieve(TOKENS, first_block=30) == engine.right(TOKENS)
        engine.register()  # again: it is known
        assert engine.retrieve(TOKENS, "next") == engine.right(TOKENS)
        engine.unregister()
    with DrivenEngine(endpoint_of(server), [KernelGroup(heads=1)], model="one head", hidden=32) as engine:
        engine.unregister()
        assert module_status(server)["workers_before_their_first_store"] == 0
