"""Two engines of one model with different block sizes share a server: each is answered as without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

LENGTHS = (1_000, 700)
STOCK: dict[str, Any] = {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "engine_driven"}}
DRIVEN: dict[str, Any] = {"connector": "stock", "extra": {"lmcache.mp.mp_transfer_mode": "lmcache_driven"}}
OWN: dict[str, Any] = {"connector": "own", "extra": {"lmcache.lookup_timeout_ms": 20_000}}


class Case(NamedTuple):
    sizes: tuple[int, int]
    connectors: tuple[dict[str, Any], dict[str, Any]]
    chunk_tokens: int
    apart: bool
    """They send different model names.  With one name a lookup needs a chunk in the layouts of both while both live."""


CASES = {
    "own-64-own-32": Case((64, 32), (OWN, OWN), 256, apart=True),
    "own-128-stock-64": Case((128, 64), (OWN, STOCK), 128, apart=True),
    "driven-32-own-128": Case((32, 128), (DRIVEN, OWN), 256, apart=True),
    "stock-64-stock-32": Case((64, 32), (STOCK, STOCK), 64, apart=False),
    "driven-128-driven-32": Case((128, 32), (DRIVEN, DRIVEN), 256, apart=False),
    "stock-128-driven-64": Case((128, 64), (STOCK, DRIVEN), 128, apart=False),
}
"""Each pair of ways once, and each pair of the block sizes with which vLLM 0.32 starts on this platform: 32 and more. Blocks of
16 are in test_block_layers.py."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_two_block_sizes(
    case: Case, engine_environment: None, start_server: StartServer, reference: Reference, tmp_path: Path
) -> None:
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(case.chunk_tokens))
    of_both, of_first, of_second = ([random_prompt(seed, length) for length in LENGTHS] for seed in (70, 71, 72))
    first, second = (
        EngineProcess(tmp_path / f"{number}.log", port=server.port, block_size=size, one_process=True, **connector)
        for number, (size, connector) in enumerate(zip(case.sizes, case.connectors, strict=True))
    )

    def ask(engine: EngineProcess, prompts: list[list[int]], hits: bool) -> None:
        answers = engine.ask(prompts)
        assert_right(answers, reference.answers(prompts))
        if hits:
            assert_cached(answers, case.chunk_tokens)
        else:
            assert_computed(answers)

    with second:
        with first:
            for engine in (first, second):
                ask(engine, of_both, hits=False)
            ask(first, of_first, hits=False)
            ask(second, of_second, hits=False)
            for engine in (first, second):
                ask(engine, of_both, hits=True)
            ask(first, of_first, hits=case.apart)
            ask(second, of_second, hits=case.apart)
        ask(second, of_second, hits=True)
