"""Two engines of one model with different block sizes share a server: each is answered as without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_computed, assert_right
from tests.engine.reference import Reference

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LENGTHS = (1_000, 700)
STOCK: dict[str, Any] = {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "engine_driven"}}
DRIVEN: dict[str, Any] = {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}}
OWN: dict[str, Any] = {"connector": "own", "extra": {"lmcache.lookup_timeout_ms": 20_000}}


class Case(NamedTuple):
    sizes: tuple[int, int]
    connectors: tuple[dict[str, Any], dict[str, Any]]
    chunk_tokens: int
    """The engines' connectors send the same model name: while both live, a lookup needs a chunk of each layout."""
    one_name: bool


CASES = {
    "own-64-own-32": Case((64, 32), (OWN, OWN), 256, one_name=True),
    "stock-64-stock-32": Case((64, 32), (STOCK, STOCK), 256, one_name=True),
    "driven-128-driven-32": Case((128, 32), (DRIVEN, DRIVEN), 256, one_name=True),
    "own-128-stock-64": Case((128, 64), (OWN, STOCK), 128, one_name=True),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_block_sizes(
    case: Case, engine_environment: None, start_server: StartServer, reference: Reference, tmp_path: Path
) -> None:
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(case.chunk_tokens))
    prompts = [[random_prompt(seed, length) for length in LENGTHS] for seed in (70, 71)]
    truth = [reference.answers(each) for each in prompts]
    engines = [
        EngineProcess(tmp_path / f"{number}.log", port=server.port, block_size=size, **connector)
        for number, (size, connector) in enumerate(zip(case.sizes, case.connectors, strict=True))
    ]
    with engines[0] as first:
        stored = first.ask(prompts[0])
        assert_computed(stored)
        assert_right(stored, truth[0])
        with engines[1] as second:
            assert_right(second.ask(prompts[0]), truth[0])
