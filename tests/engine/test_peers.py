"""Two engines, each with a server of its own: what one computed the other takes out of the first server's memory, or is handed
over by it while it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from plugins.pd.tests.local_engine import LocalEngine
from plugins.pd.tests.proxy_process import ProxyProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import HEARTBEAT_SECONDS
from tests.peers.site import Fleet, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CHUNK_TOKENS = 256
BLOCK_TOKENS = 32
LENGTHS = [700, 1_500, 3_000]


class Pair:
    """A fleet of two servers, and an engine for each."""

    def __init__(self, fleet: Fleet, engines: list[EngineProcess]) -> None:
        self.fleet, self.engines = fleet, engines


@pytest.fixture(scope="module")
def pair(engine_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("peers")
    # Long waits: on a busy machine a coordinator or a peer that answers late would be a miss, as it should.
    options = ("--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "1", "--p2p-lookup-timeout", "20")
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(folder, 2, *options))
        extra = {
            "lmcache.heartbeat_seconds": HEARTBEAT_SECONDS,
            "lmcache.lookup_timeout_ms": 20_000,
            "lmcache.pd_role": "both",
            "lmcache.handoff_progress_seconds": 20.0,
        }
        engines = [
            EngineProcess(
                folder / f"engine-{server.name}.log",
                port=server.process.port,
                connector="own",
                extra=extra,
                one_process=True,
            )
            for server in fleet.servers
        ]
        for engine in engines:
            stack.enter_context(engine)
        yield Pair(fleet, engines)


def test_an_engine_takes_what_another_servers_engine_stored(pair: Pair, reference: Reference) -> None:
    prompts = [random_prompt(71, length) for length in LENGTHS]
    truth = reference.answers(prompts)
    stored = pair.engines[0].ask(prompts)
    assert_computed(stored)
    chunks = sum(-(-length // CHUNK_TOKENS) for length in LENGTHS)  # and tails
    until(lambda: pair.fleet.known("s0") >= chunks)
    taken = pair.engines[1].ask(prompts)
    assert_cached(taken, BLOCK_TOKENS)
    assert_right(stored + taken, truth + truth)
    assert pair.fleet.servers[1].status()["reader"]["peers"]["s0"]["read"] >= chunks


class ServedEngine(LocalEngine):
    """The HTTP server that `vllm serve` is, as far as a proxy sees it, in front of a real engine."""

    def __init__(self, engine: EngineProcess) -> None:
        super().__init__()
        self._engine = engine
        self.answers: list[Any] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        params = dict(body["kv_transfer_params"])
        params.pop("remote_prefill_cached_tokens", None)  # vLLM would report prefill's in place of decode's
        answer = self._engine.ask_with(body["prompt"], params, max_tokens=body.get("max_tokens", 8))
        self.answers.append(answer)
        return {"choices": [{"token_ids": list(answer.output)}], "kv_transfer_params": answer.kv_transfer_params}


@pytest.mark.parametrize("mode", ["sequential", "concurrent"])
@pytest.mark.slow
def test_an_engine_is_handed_what_another_servers_engine_computes(
    pair: Pair, reference: Reference, tmp_path: Path, mode: str
) -> None:
    """By the server that has it, before the directory knows; less than a block of the prompt is computed again."""
    seed = {"sequential": 72, "concurrent": 73}[mode]
    prompts = [random_prompt(seed, length) for length in (40, 1_055, 3_000)]
    asked = pair.fleet.servers[1].status()["reader"]["directory_asked"]
    with ServedEngine(pair.engines[0]) as prefill, ServedEngine(pair.engines[1]) as decode:
        flags = ("--mode", mode, "--coordinator-url", pair.fleet.coordinator.url)
        with ProxyProcess(tmp_path, [prefill.url], [decode.url], *flags) as proxy:
            for prompt in prompts:
                assert proxy.complete(prompt=prompt, max_tokens=8).status == 200
        assert len(prefill.answers) == len(decode.answers) == len(prompts)
        assert_computed(prefill.answers)
        assert_right(decode.answers, reference.answers(prompts))
        assert_cached(decode.answers, BLOCK_TOKENS)
    # Once for each prompt, for the key behind its end, which prefill's server has not.
    assert pair.fleet.servers[1].status()["reader"]["directory_asked"] <= asked + len(prompts)


def test_a_flipped_byte_is_computed_and_never_taken(pair: Pair, reference: Reference) -> None:
    """Every object of the first server is changed after the other one has read it once."""
    prompts = [random_prompt(71, length) for length in LENGTHS]
    truth = reference.answers(prompts)
    one, two = pair.fleet.servers
    assert one.flip_everything() > 0
    before = two.status()["reader"]["peers"]["s0"].get("damaged", 0)
    assert_right(pair.engines[1].ask(prompts), truth)
    assert two.status()["reader"]["peers"]["s0"]["damaged"] > before
