"""Pipelines of one model that are cut at different layers: each engine finds what it stored, and nothing of the other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.site import SPINNING_WORKERS

pytestmark = [pytest.mark.alone, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CHUNK_TOKENS = 128
CUTS = ("2,2", "1,3")


def test_another_cut_shares_nothing(engine_environment: None, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS))
    prompts = [random_prompt(70, 600), random_prompt(71, 1_024)]
    driver = Path(__file__).with_name("pipeline_driver.py")
    options = [["--stages", cut] for cut in CUTS]
    engines = [
        EngineProcess(
            tmp_path / f"{cut}.log",
            port=server.port,
            connector="own",
            extra=SPINNING_WORKERS,
            driver=driver,
            options=each,
        )
        for cut, each in zip(CUTS, options, strict=True)
    ]
    with ExitStack() as stack:
        for engine in engines:
            stack.enter_context(engine)
        computed = [engine.ask(prompts) for engine in engines]
        for answers in computed:
            assert_computed(answers)
            assert_right(answers, computed[0])
        for engine in engines:
            hits = engine.ask(prompts)
            assert_cached(hits, CHUNK_TOKENS)
            assert_right(hits, computed[0])
        workers = server.status()["workers"]
    assert len({worker["identity"] for worker in workers}) == len(CUTS)
    assert sorted(worker["layout"].split(", ")[0] for worker in workers) == [
        "float32[1",
        "float32[2",
        "float32[2",
        "float32[3",
    ]
