"""What a server takes out of another one's memory is what its own engine would have computed: shards, windows, adapters and
types of the cache are kept apart between machines as they are on one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.cache_rule import whole_chunks
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from tests.engine.adapters_driver import ADAPTERS
from tests.engine.architectures import Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.conftest import NEEDS_AVX512
from tests.engine.reference import Reference
from tests.engine.test_own_connector_identity import make_adapter
from tests.peers.site import Fleet, until

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

CHUNK_TOKENS = 128
PATIENT = {"lmcache.lookup_timeout_ms": 20_000, "lmcache.heartbeat_seconds": 60.0}
"""Workers that wait for each other take all cores for seconds."""


class Sides:
    """Two servers, and one engine at a time at either of them."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder

    def engine(self, side: int, **fields: Any) -> EngineProcess:
        port = self.fleet.servers[side].process.port
        return EngineProcess(self.folder / f"engine-{side}.log", port=port, connector="own", extra=PATIENT, **fields)

    def objects(self) -> int:
        return len(self.fleet.servers[0].keys())

    def wait_known(self, objects: int) -> None:
        """Until the directory knows everything that the first server has, and that is so much."""
        until(lambda: self.fleet.known("s0") == self.objects() >= objects)

    def read(self) -> int:
        """Objects that the second server has read from the first one."""
        return int(self.fleet.servers[1].status()["reader"]["peers"].get("s0", {}).get("read", 0))


@pytest.fixture
def sides(engine_environment: None, tmp_path: Path) -> Iterator[Sides]:
    options = ("--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "1", "--p2p-lookup-timeout", "20")
    with Fleet(tmp_path, 2, *options) as fleet:
        yield Sides(fleet, tmp_path)


@pytest.mark.alone
def test_two_workers_on_both_sides(sides: Sides, reference: Reference) -> None:
    """And an engine with one worker finds nothing of theirs."""
    prompts = [random_prompt(74, length) for length in (700, 1_500)]
    truth = reference.answers(prompts)
    objects = 2 * sum(whole_chunks(len(prompt), CHUNK_TOKENS) for prompt in prompts)
    with sides.engine(0, tensor_parallel=2) as engine:
        assert_computed(engine.ask(prompts))
        sides.wait_known(objects)
    with sides.engine(1, tensor_parallel=2) as engine:
        taken = engine.ask(prompts)
    assert_cached(taken, CHUNK_TOKENS)
    assert_right(taken, truth)
    assert sides.read() >= objects
    with sides.engine(1) as engine:
        alone = engine.ask(prompts)
    assert_computed(alone)
    assert_right(alone, truth)


def test_sliding_windows(sides: Sides, tmp_path: Path) -> None:
    model = Architecture("llama-windows").make(tmp_path)
    prompts = [random_prompt(75, length) for length in (1_100, 2_048)]
    with sides.engine(0, model=model) as engine:
        computed = engine.ask(prompts)
        assert_computed(computed)
        sides.wait_known(sum(whole_chunks(len(prompt), CHUNK_TOKENS) for prompt in prompts))
    with sides.engine(1, model=model) as engine:
        taken = engine.ask(prompts)
    assert_cached(taken, CHUNK_TOKENS)
    assert_right(taken, computed)
    assert sides.read() > 0


def test_adapters(sides: Sides, tmp_path: Path) -> None:
    """The same one is found under another name and path; another one and the model alone are not mistaken for it."""
    folders = [make_adapter(tmp_path / "one", 1), tmp_path / "copy", make_adapter(tmp_path / "other", 2)]
    shutil.copytree(folders[0], folders[1])
    prompt = random_prompt(76, 600)
    base, one, copy, other = ([*prompt, last] for last in (7, ADAPTERS, ADAPTERS + 1, ADAPTERS + 2))
    driver = {
        "driver": Path(__file__).with_name("adapters_driver.py"),
        "options": ["--adapters", json.dumps(list(map(str, folders)))],
    }
    with sides.engine(0, **driver) as engine:
        first = engine.ask([one])
        assert_computed(first)
        sides.wait_known(whole_chunks(len(one), CHUNK_TOKENS))
    with sides.engine(1, **driver) as engine:
        assert_computed(engine.ask([base, other]))
        assert sides.read() == 0
        taken = engine.ask([copy])
    assert_cached(taken, CHUNK_TOKENS)
    assert_right(taken, first)
    assert sides.read() > 0


@NEEDS_AVX512
def test_types_of_one_size(sides: Sides) -> None:
    """Both layouts are `uint8` of one shape; what the one engine stored is a miss for the other."""
    prompts = [random_prompt(77, 600)]
    with sides.engine(0, options=["--kv-cache-dtype", "fp8_e4m3"]) as engine:
        assert_computed(engine.ask(prompts))
        sides.wait_known(whole_chunks(600, CHUNK_TOKENS))
    with sides.engine(1, options=["--kv-cache-dtype", "fp8_e5m2"]) as engine:
        assert_computed(engine.ask(prompts))
    assert sides.read() == 0
