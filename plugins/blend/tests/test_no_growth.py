"""Documents in ever new orders, in a server with room for half as much again: what is found and kept does not change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from demo.server_process import ServerProcess
from lmcache_client import BLEND_COMMIT, BLEND_LOOKUP, BLEND_PREPARE, BlendAnswer, BlendSlots
from lmcache_devkit.fake_engine import FakeEngine

SIZE = 16
CHUNKS = 4  # of a document
DOCUMENTS = 50
ORDERS = 1000
HEADING = SIZE + 5
"""Tokens that each prompt has before its documents, and no other has: what an engine stores of it, as it is exact."""
WINDOW = 100
INDEX_CHUNKS = 2 * DOCUMENTS * CHUNKS
SLOT_BYTES = 12288  # of an object of this engine, with its header, aligned
SECONDS = 10.0
MEMORY_GROWTH_BYTES = 10 << 20
"""In the second half: 20 KiB for each prompt, and a prompt with its hashes takes 40."""


class Kept(NamedTuple):
    """By the server between two prompts."""

    leases: int
    reads: int
    indexed: int
    l1_bytes: int
    anonymous_bytes: int


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """With the eviction ratio that the test is parametrized with."""
    gib = 1.5 * DOCUMENTS * CHUNKS * SLOT_BYTES / (1 << 30)
    options = ["--l1-size-gb", f"{gib:.6f}", "--eviction-policy", "LRU", "--chunk-size", str(SIZE)]
    options += ["--engine-type", "blend", "--blend-index-chunks", str(INDEX_CHUNKS)]
    options += ["--eviction-ratio", str(request.param)]
    options += ["--session-ttl-seconds", "1"]  # the server remembers prompts up to 128 MiB otherwise
    with ServerProcess(options, tmp_path / "log") as server:
        yield server


def documents() -> list[list[int]]:
    return [[1000 * (number + 1) + at for at in range(SIZE * CHUNKS)] for number in range(DOCUMENTS)]


def prompt(number: int, order: Sequence[Sequence[int]]) -> list[int]:
    """Each document at a place that need not be that of a chunk."""
    own = 1_000_000 + 1000 * number
    tokens = [own + at for at in range(HEADING)]
    for at, document in enumerate(order):
        tokens += [*document, *[own + 500 + at] * (1 + at % 3)]
    return tokens


def blend(engine: FakeEngine, tokens: list[int], request: str) -> int:
    """As an engine does: look up, read what is there, store what is exact, end.  Tokens of documents that were there."""
    key = engine.key(tokens, request, 0, len(tokens), of_worker=False)
    answer = engine.scheduler.call(BLEND_LOOKUP, key, SECONDS)
    assert isinstance(answer, BlendAnswer)
    slots = engine.worker.call(
        BLEND_PREPARE, engine.key(tokens, request, 0, len(tokens)), answer.segments, engine.instance_id
    )
    assert isinstance(slots, BlendSlots)
    assert engine.worker.call(BLEND_COMMIT, request, engine.instance_id)
    exact = min((each.start for each in answer.segments), default=len(tokens)) // SIZE * SIZE
    assert engine.store(tokens, request, answer.prefix_tokens, exact)
    engine.end(request)
    return SIZE * sum(slot is not None for slot in slots.slots)


def kept(server: ServerProcess) -> Kept:
    status: dict[str, Any] = server.status()
    l1, module = status["l1"], status["modules"]["blend"]
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    (anonymous,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
    return Kept(l1["leases"], module["reads_prepared"], module["chunks"], l1["used_bytes"], anonymous)


@pytest.mark.slow
@pytest.mark.parametrize(("server", "of_a_prompt"), [(0.2, DOCUMENTS), (0.05, DOCUMENTS // 5)], indirect=["server"])
def test_orders_that_never_come_again_take_nothing_from_documents(server: ServerProcess, of_a_prompt: int) -> None:
    """Documents are stored once, alone; a thousand prompts have all of them or a fifth, each in an order of its own.

    An eviction that frees more at once takes documents along that are asked for more rarely, and no blend stores them."""
    chance = random.Random(21)
    known = documents()
    found: list[int] = []
    during: list[Kept] = []
    with FakeEngine(f"tcp://127.0.0.1:{server.port}") as engine:
        for number, document in enumerate(known):
            assert engine.store(document, f"alone {number}")
        for number in range(ORDERS):
            found.append(blend(engine, prompt(number, chance.sample(known, of_a_prompt)), f"order {number}"))
            if (number + 1) % WINDOW == 0:
                during.append(kept(server))
    tokens = of_a_prompt * CHUNKS * SIZE * WINDOW
    reuse = [sum(found[at : at + WINDOW]) / tokens for at in range(0, ORDERS, WINDOW)]
    print(reuse)
    assert reuse[0] > 0.9
    assert reuse[-1] > 0.95 * reuse[0]
    assert {(each.leases, each.reads) for each in during} == {(0, 0)}
    assert all(each.indexed <= INDEX_CHUNKS for each in during)
    halfway, *later = (each.anonymous_bytes for each in during[len(during) // 2 - 1 :])
    assert max(later) < halfway + MEMORY_GROWTH_BYTES
