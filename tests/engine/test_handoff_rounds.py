"""Two engines that prefill and one that decodes, behind the proxy, each with a server of its own: any of them dies or stops
at any time.  No answer is wrong, and a request fails only where its decode engine died."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from demo.child_process import ChildError
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from lmcache_devkit import free_port
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from plugins.pd.tests.proxy_process import ProxyProcess
from tests.engine.http_engine import HttpEngine, ask, is_up
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS

pytestmark = [pytest.mark.alone, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(4_500)]

MINUTES: Final = 30 if os.environ.get("LMCACHE_TEST_LONG") else 8
CLIENTS: Final = 2
PROMPTS: Final = 60
TOKENS: Final = (40, 3_000)
QUIET_SECONDS: Final = (2.0, 15.0)
"""Between two faults."""
STOP_SECONDS: Final = (1.0, 20.0)


class Node(NamedTuple):
    """An engine and its server."""

    engine: HttpEngine
    server: ServerProcess


class Scene:
    def __init__(self, folder: Path, mode: str, stack: ExitStack) -> None:
        self.stack = stack
        self.coordinator = stack.enter_context(CoordinatorProcess(folder, "--instance-timeout", "5"))
        self.nodes = [self._node(name, folder) for name in ("prefill-1", "prefill-2", "decode")]
        for node in self.nodes:
            node.engine.launch(stack)
        for node in self.nodes:
            node.engine.wait_ready()
        *prefill, decode = (node.engine.url for node in self.nodes)
        flags = ("--mode", mode, "--coordinator-url", self.coordinator.url)
        self.proxy = stack.enter_context(ProxyProcess(folder, prefill, [decode], *flags))
        self.decode_died_at: list[float] = []

    def _node(self, name: str, folder: Path) -> Node:
        options = ["--instance-id", name, "--l1-size-gb", "1", "--chunk-size", str(CHUNK_TOKENS)]
        options += ["--coordinator-url", self.coordinator.url, "--coordinator-heartbeat-interval", "0.5"]
        options += ["--p2p-advertise-url", f"tcp://127.0.0.1:{free_port()}"]
        server = self.stack.enter_context(ServerProcess(options, folder / f"{name}-server.log"))
        transfer = {
            "kv_connector": "LMCacheNodeConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "lmcache.host": "tcp://127.0.0.1",
                "lmcache.port": server.port,
                "lmcache.pd_role": "receiver" if name == "decode" else "producer",
            },
        }
        return Node(HttpEngine(name, folder, transfer, {}), server)

    def handed(self) -> int:
        """Hand-offs that were complete when decode asked for them, since its server started."""
        counts = self.nodes[-1].server.status()["modules"]["handoffs"]["counts"]
        return int(counts.get("waits_complete", 0))

    def fault(self, chance: random.Random) -> str:
        """One, and its repair.  Returns what it was."""
        place = chance.randrange(len(self.nodes))
        engine, server = self.nodes[place]
        what = chance.choice(("engine killed", "engine stopped", "server killed", "server stopped"))
        victim = engine if what.startswith("engine") else server
        if what.endswith("stopped"):
            os.killpg(victim.pid, signal.SIGSTOP)
            time.sleep(chance.uniform(*STOP_SECONDS))
            os.killpg(victim.pid, signal.SIGCONT)
        elif victim is engine:
            if place == len(self.nodes) - 1:
                self.decode_died_at.append(time.monotonic())
            engine.kill()
            engine.launch(self.stack)
            engine.wait_ready()
        else:
            server.kill()
            time.sleep(chance.uniform(*STOP_SECONDS))
            server.start()
        return f"{engine.name}: {what}"


class Client(threading.Thread):
    """Asks for one prompt after the other, while the decode engine is up."""

    def __init__(self, scene: Scene, number: int, truth: Mapping[int, tuple[Sequence[int], tuple[int, ...]]]) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.scene, self.truth = scene, truth
        self.chance = random.Random(number)
        self.over = threading.Event()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self.over.is_set():
            if not is_up(self.scene.nodes[-1].engine.port):
                time.sleep(0.2)
                continue
            prompt, tokens = self.truth[self.chance.randrange(len(self.truth))]
            start = time.monotonic()
            try:
                answer = ask(self.scene.proxy.port, prompt, tokens=len(tokens))
            except (ChildError, OSError, ValueError) as error:
                died = any(start - 1.0 <= at for at in self.scene.decode_died_at)
                self.counts["decode died" if died else "failed"] += 1
                if not died:
                    self.wrong.append(f"{len(prompt)} tokens: {error}")
                continue
            self.counts["right" if answer.tokens == tokens else "wrong"] += 1
            if answer.tokens != tokens:
                self.wrong.append(f"{len(prompt)} tokens: {answer.tokens} in place of {tokens}")


@pytest.mark.parametrize("mode", ["sequential", "concurrent"])
def test_what_dies_costs_time_and_no_answer(
    engine_environment: None, mode: str, tmp_path: Path, record_property: Any
) -> None:
    chance = random.Random(21)
    prompts = [random_prompt(9_000 + number, chance.randint(*TOKENS)) for number in range(PROMPTS)]
    reference = Reference(EngineProcess(tmp_path / "reference.log", port=None, one_process=True))
    answers = reference.answers(prompts)
    reference.close()  # three engines at a time
    truth = {number: (prompt, answers[number].output) for number, prompt in enumerate(prompts)}
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        scene = Scene(tmp_path, mode, stack)
        clients = [Client(scene, number, truth) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        until, handed = time.monotonic() + MINUTES * 60 / 2, 0
        while time.monotonic() < until:
            faults[scene.fault(chance)] += 1
            time.sleep(chance.uniform(*QUIET_SECONDS))
            handed = max(handed, scene.handed())
        for client in clients:
            client.over.set()
        for client in clients:
            client.join(300)
    counts = sum((client.counts for client in clients), Counter[str]())
    print(f"\n{mode}: {dict(counts)} of requests; {sum(faults.values())} faults: {dict(faults)}")
    record_property("counts", dict(counts))
    assert not [each for client in clients for each in client.wrong]
    assert counts["right"] > 0
    assert handed > 0, "the directory alone gave decode what it has"
