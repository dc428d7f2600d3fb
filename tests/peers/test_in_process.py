"""Caches inside of engines' processes hand over to each other: what a sender stored, a receiver reads and removes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lmcache_client import EngineChannel
from lmcache_client.handoff import COMPLETE, HANDOFF_COMPLETE, HANDOFF_FOLLOW, HANDOFF_OPEN, HANDOFF_WAIT, OPEN
from lmcache_core import open_local
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.peers.in_process_engine import BLOCKS, InProcessEngine
from tests.peers.site import CHUNK_TOKENS, prompt, until

TOKENS = BLOCKS * 8
LEASE_SECONDS = 2.0


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(folder, "--instance-timeout", "5", "--health-check-interval", "0.5") as started:
        yield started


def pd(coordinator: CoordinatorProcess, role: str, ranks: int = 1) -> dict[str, Any]:
    """As in files of the public package, with a coordinator."""
    server = {
        "coordinator_url": coordinator.url,
        "coordinator_heartbeat_interval": 0.5,
        "offer_settings": {"service:p2p": {"lease_seconds": LEASE_SECONDS}},
    }
    return {
        "local_cpu": False,
        "enable_pd": True,
        "pd_role": role,
        "pd_peer_host": "localhost",
        "pd_peer_init_port": [free_port() for _ in range(ranks)],
        "extra_config": {"server": server},
    }


def found(engine: InProcessEngine, number: int) -> bool:
    tokens, is_right, _ = engine.ask("retrieve", number)
    assert is_right, "never a wrong byte"
    return bool(tokens == TOKENS)


def l1(engine: InProcessEngine) -> Any:
    return engine.ask("status")["l1"]


def p2p(engine: InProcessEngine) -> Any:
    return engine.ask("status")["services"]["p2p"]


def leased(sender: InProcessEngine) -> int:
    """Objects, to all of its peers."""
    return sum(peer.get("leased", 0) for peer in p2p(sender)["owner"].values())


def test_a_receiver_reads_the_whole_prompt_and_keeps_nothing(coordinator: CoordinatorProcess) -> None:
    with InProcessEngine(pd(coordinator, "sender")) as sender, InProcessEngine(pd(coordinator, "receiver")) as receiver:
        assert sender.ask("store", 1) == TOKENS
        until(lambda: found(receiver, 1))
        until(lambda: l1(receiver)["cached"] == 0)
        assert l1(sender)["cached"] == 3, "it stays at the sender, for the next turn"
        assert receiver.ask("store", 2) == TOKENS
        assert found(receiver, 2)
        assert l1(receiver)["cached"] == 3, "what was not handed over is not removed"


def test_each_rank_reads_its_own_shard(coordinator: CoordinatorProcess) -> None:
    sends, receives = pd(coordinator, "producer", 2), pd(coordinator, "receiver", 2)
    with ExitStack() as stack:
        senders = [stack.enter_context(InProcessEngine(sends, rank, 2)) for rank in range(2)]
        receivers = [stack.enter_context(InProcessEngine(receives, rank, 2)) for rank in range(2)]
        for sender in senders:
            assert sender.ask("store", 3) == TOKENS
        until(lambda: found(receivers[0], 3))
        until(lambda: l1(receivers[0])["cached"] == 0)
        until(lambda: found(receivers[1], 3))  # one rank that has removed its own takes nothing from the other
        assert [l1(sender)["cached"] for sender in senders] == [3, 3]


def test_a_sender_that_is_killed_costs_a_hit(coordinator: CoordinatorProcess) -> None:
    with InProcessEngine(pd(coordinator, "receiver")) as receiver:
        with InProcessEngine(pd(coordinator, "sender")) as sender:
            assert sender.ask("store", 4) == TOKENS
            until(lambda: found(receiver, 4))
            sender.kill()
            tokens, is_right, seconds = receiver.ask("retrieve", 4)
            assert (tokens, is_right) == (0, True)
            assert seconds < 5.0
        with InProcessEngine(pd(coordinator, "sender")) as sender:
            assert sender.ask("store", 4) == TOKENS
            until(lambda: found(receiver, 4))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_ends_while_it_reads_holds_nothing(
    coordinator: CoordinatorProcess, end: signal.Signals
) -> None:
    with InProcessEngine(pd(coordinator, "sender")) as sender:
        assert sender.ask("store", 5) == TOKENS
        with InProcessEngine(pd(coordinator, "receiver")) as first:
            until(lambda: found(first, 5))
            before = leased(sender)
            first.say(*[("retrieve", 5)] * 500)
            until(lambda: leased(sender) >= before + 6)
            assert first.process.poll() is None, "it reads the prompt again and again"
            os.kill(first.process.pid, end)
            until(lambda: not p2p(sender)["leases"], LEASE_SECONDS + 10)
            first.kill()
        with InProcessEngine(pd(coordinator, "both")) as second:
            until(lambda: found(second, 5))
            until(lambda: l1(second)["cached"] == 0)


def test_peers_keep_what_they_have_read(coordinator: CoordinatorProcess) -> None:
    def peer() -> dict[str, Any]:
        given = pd(coordinator, "none")
        port = given["pd_peer_init_port"]
        server = given["extra_config"]
        return {"enable_p2p": True, "p2p_host": "127.0.0.1", "p2p_init_ports": port, "extra_config": server}

    whole = TOKENS // 16 * 16
    with InProcessEngine(peer()) as one, InProcessEngine(peer()) as other:
        assert one.ask("store", 6) == whole
        until(lambda: other.ask("retrieve", 6)[:2] == [whole, True])
        one.kill()
        assert other.ask("retrieve", 6)[:2] == [whole, True]


def test_a_hand_off_leaves_the_receiver_when_both_ranks_have_read_it(
    coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    """Caches that are served to workers.  Their memory has no name then: it is mapped by its owner's descriptor."""
    with ExitStack() as stack:
        caches, engines = [], []
        for name in ("prefill", "decode"):
            settings = {
                "l1_size_gb": 0.01,
                "chunk_size": CHUNK_TOKENS,
                "l1_shared_memory": True,
                "instance_id": name,
                "coordinator_url": [coordinator.url],
                "coordinator_heartbeat_interval": 0.5,
                "p2p_advertise_url": f"tcp://127.0.0.1:{free_port()}",
                "plugins": ["p2p", "fleet_member"],
            }
            caches.append(open_local(settings))
            stack.callback(caches[-1].close, 1.0)
            engines.append(stack.enter_context(FakeEngine(caches[-1].serve(f"ipc://{tmp_path}/{name}/s"))))
        segments = [Path("/dev/shm", cache.status()["l1"]["segment"]) for cache in caches]
        until(
            lambda: all(each.worker.ping(each.instance_id) for each in engines) and not any(map(Path.exists, segments))
        )
        tokens = prompt(8, 4)
        said, asked = (
            stack.enter_context(EngineChannel(cache.status()["server"]["engine_endpoint"])) for cache in caches
        )
        prefill, decode = engines
        said.call(HANDOFF_OPEN, "h", prefill.key(tokens, "p", 0, len(tokens), of_worker=False))
        assert prefill.store(tokens, "p")
        said.call(HANDOFF_COMPLETE, "h")
        key = decode.key(tokens, "d", 0, len(tokens), of_worker=False)
        asked.call(HANDOFF_FOLLOW, "h", "prefill", 0, key)
        state = asked.call(HANDOFF_WAIT, "h", -1, 20.0, timeout_seconds=30.0)
        while state.state == OPEN:
            state = asked.call(HANDOFF_WAIT, "h", state.chunks, 20.0, timeout_seconds=30.0)
        assert (state.state, state.chunks) == (COMPLETE, 4)
        assert decode.scheduler.lookup_hits(replace(key, num_kv_readers=2)) == 4
        (peer,) = caches[1].status()["services"]["p2p"]["reader"]["peers"].values()
        assert (peer["channel"], peer["read"]) == ("shm", 4)

        def has() -> int:
            l1 = caches[1].status()["l1"]
            return int(l1["held"] + l1["cached"])

        for _ in range(2):
            assert has() == 4
            assert decode.retrieve(tokens, "d", end=len(tokens)) == [decode.content(tokens, each) for each in range(4)]
        decode.end("d")
        until(lambda: has() == 0)
        assert caches[0].status()["l1"]["cached"] == 4
