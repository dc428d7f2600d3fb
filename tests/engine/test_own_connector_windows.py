"""Our connector where a prompt takes many steps, and windows free its blocks while they are still being stored."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from demo.cache_rule import whole_chunks
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from tests.conftest import StartServer
from tests.engine.architectures import Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

DRIVER = Path(__file__).with_name("windows_driver.py")
CHUNK_TOKENS = 128
LENGTHS = (1_100, 2_048)
STORE_SECONDS = 30.0
PATIENT = {"lmcache.lookup_timeout_ms": 20_000}
"""Other tests may have the processor."""


def wait_stored(server: ServerProcess, chunks: int) -> None:
    """The last store of a prompt ends after its answer."""
    deadline = time.monotonic() + STORE_SECONDS
    while (found := server.status()["l1"]["cached"]) < chunks:
        assert time.monotonic() < deadline, f"{found} of {chunks} chunks were stored"
        time.sleep(0.05)


def test_a_prompt_of_many_windows_is_stored_whole(
    engine_environment: None, start_server: StartServer, tmp_path: Path
) -> None:
    model = Architecture("llama-windows").make(tmp_path)
    prompts = [random_prompt(50 + length, length) for length in LENGTHS]
    server = start_server("--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS))
    with EngineProcess(
        tmp_path / "own.log", port=server.port, model=model, connector="own", extra=PATIENT, driver=DRIVER
    ) as engine:
        cold = engine.ask(prompts)
        wait_stored(server, sum(whole_chunks(length, CHUNK_TOKENS) for length in LENGTHS))
        hits = engine.ask(prompts)
        both = engine.ask_together(prompts)
    assert_computed(cold)
    for answers in (hits, both):
        assert_cached(answers, CHUNK_TOKENS)
        assert_right(answers, cold)
