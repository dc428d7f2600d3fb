"""An engine of two workers: each chunk is two objects, and a hit needs both.

On a machine of two cores the workers spin while they wait for each other, and can keep all others from a core for
seconds, even minutes when the machine has other work.  So the prompts are few, and the limits wide.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.cache_rule import whole_chunks
from demo.engine_process import EngineProcess
from demo.l2_folder import L2Folder
from tests.conftest import StartServer
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.ladder import PROMPTS
from tests.engine.reference import Reference

pytestmark = [pytest.mark.alone, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CHUNK_TOKENS = 256
WORKERS = 2
SHORT_PROMPTS = [prompt for prompt in PROMPTS if len(prompt) < 3_000]
OBJECTS = WORKERS * sum(whole_chunks(len(prompt), CHUNK_TOKENS) for prompt in SHORT_PROMPTS)
LONG_TIMEOUTS = {"lmcache.mp.heartbeat_interval": 60.0}
"""A heartbeat that is not answered within its interval would count as a dead server."""


def test_the_same_answers_from_every_tier(start_server: StartServer, reference: Reference, tmp_path: Path) -> None:
    l2 = L2Folder(tmp_path / "l2")
    l2.path.mkdir()
    waits = ("--lookup-timeout-seconds", "60", "--l2-timeout-seconds", "60")
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS), *waits, *l2.adapter_option())
    truth = reference.answers(SHORT_PROMPTS)
    log_path = tmp_path / "engine.log"
    with EngineProcess(log_path, port=server.port, extra=LONG_TIMEOUTS, tensor_parallel=WORKERS) as engine:
        cold = engine.ask(SHORT_PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        from_l1 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        l2.wait_for_objects(OBJECTS, timeout_seconds=120)
    server.kill()
    server.start()
    with EngineProcess(log_path, port=server.port, extra=LONG_TIMEOUTS, tensor_parallel=WORKERS) as engine:
        from_l2 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l2, CHUNK_TOKENS)
        assert_right(from_l2, truth)
