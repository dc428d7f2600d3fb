"""Our connector where requests share prefixes, overlap, and lose their blocks: the answers do not change."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.conftest import StartServer
from tests.engine.comparison import assert_right

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

DRIVER = Path(__file__).with_name("crowded_driver.py")
OPTIONS = ("--max-model-len", "4096", "--max-num-seqs", "8")
CHUNK_TOKENS = 64
OUTPUT_TOKENS = 120
ROUNDS = 3


def prompts() -> list[list[int]]:
    own = random.Random(3)
    shared = random_prompt(30, 700)
    return [
        shared[: own.randrange(100, 700)] + random_prompt(seed, own.randrange(20, 500)) for seed in range(31, 31 + 20)
    ]


def preempted(engine: EngineProcess) -> int:
    return int(re.findall(r"preemptions=(\d+)", engine.log)[-1])


def test_preempted_requests_answer_the_same(
    engine_environment: None, start_server: StartServer, tmp_path: Path
) -> None:
    asked = prompts()
    with EngineProcess(tmp_path / "bare.log", port=None, driver=DRIVER, options=OPTIONS) as bare:
        truth = bare.ask_together(asked, max_tokens=OUTPUT_TOKENS)
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS))
    extra = {"lmcache.save_decode": True}
    with EngineProcess(
        tmp_path / "own.log", port=server.port, connector="own", extra=extra, driver=DRIVER, options=OPTIONS
    ) as engine:
        rounds = [engine.ask_together(asked, max_tokens=OUTPUT_TOKENS) for _ in range(ROUNDS)]
        assert preempted(engine) > 0, "the engine had space for all: nothing was tested"
        for answers in rounds:
            assert_right(answers, truth)
        cached = [sum(answer.cached_tokens for answer in answers) for answers in rounds]
        assert cached[1] > cached[0]
        assert server.status()["l1"]["held"] == 0
