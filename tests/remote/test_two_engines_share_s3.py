"""Two servers with an engine each and one S3 bucket: what one engine computed the other takes, and says the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from demo.engine_process import ENGINE_PYTHON, MODEL, EngineProcess
from demo.prompts import random_prompt
from demo.server_process import ServerProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.media_faults.site import wait_for
from tests.remote.backends import Backend, running
from tests.remote.tcp_proxy import Refuse, TcpProxy, Throttle, Way

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

CHUNK_TOKENS = 256
LENGTHS = (500, 1_500, 3_000)


class Node:
    """A server, its engine, and its line to the bucket."""

    def __init__(self, server: ServerProcess, engine: EngineProcess, proxy: TcpProxy) -> None:
        self.server, self.engine, self.proxy = server, engine, proxy

    def die(self) -> None:
        """As a machine does: what its kernel would still send is lost, too."""
        self.server.kill()
        self.proxy.switch(Refuse())
        self.engine.kill()

    def wait_stored(self) -> None:
        """Until nothing is on its way to L2."""
        wait_for(lambda: not self.server.status()["store"]["backlog_bytes"])
        (account,) = self.server.status()["store"]["adapters"].values()
        assert account["stored"]
        assert account["failed"] == account["dropped"] == 0

    @property
    def loaded(self) -> int:
        """Objects that came from the bucket."""
        return int(self.server.status()["chunks"]["loaded_from_l2"])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    if not ENGINE_PYTHON.exists() or not (MODEL / "model.safetensors").exists():
        pytest.skip("no engine environment here: run `make setup`")
    reference = Reference(
        EngineProcess(tmp_path_factory.mktemp("reference") / "engine.log", port=None, one_process=True)
    )
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with running("s3-rclone", tmp_path_factory.mktemp("bucket")) as backend:
        yield backend


@pytest.fixture(scope="module")
def nodes(backend: Backend, reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        nodes = []
        for name in ("first", "second"):
            proxy = stack.enter_context(TcpProxy(backend.port))
            adapter = json.dumps(backend.through(proxy.port, shared=True))
            flags = ["--chunk-size", str(CHUNK_TOKENS), "--l1-size-gb", "1", "--l2-adapter", adapter]
            server = stack.enter_context(ServerProcess(flags, folder / f"{name}-server.log"))
            engine = stack.enter_context(EngineProcess(folder / f"{name}-engine.log", port=server.port))
            nodes.append(Node(server, engine, proxy))
        yield nodes


def test_what_one_computed_the_other_takes(nodes: list[Node], reference: Reference) -> None:
    first, second = nodes
    prompts = [random_prompt(41, length) for length in LENGTHS]
    truth = reference.answers(prompts)
    computed = first.engine.ask(prompts)
    assert_computed(computed)
    first.wait_stored()
    taken = second.engine.ask(prompts)
    assert_cached(taken, CHUNK_TOKENS)
    assert_right(computed + taken, truth + truth)
    assert second.loaded >= sum(length // CHUNK_TOKENS for length in LENGTHS)


def test_both_ways_at_once(nodes: list[Node], reference: Reference) -> None:
    """Each extends prompts of the other, with the beginning from the bucket and the end computed."""
    heads = [[random_prompt(seed, 1_000)] for seed in (42, 43)]
    for node, head in zip(nodes, heads, strict=True):
        node.engine.ask(head)
        node.wait_stored()
    longer = [[head[0] + random_prompt(seed, 700)] for head, seed in zip(heads, (44, 45), strict=True)]
    for node, prompts in zip(nodes, reversed(longer), strict=True):
        answers = node.engine.ask(prompts)
        assert_right(answers, reference.answers(prompts))
        assert answers[0].cached_tokens == 1_000 // CHUNK_TOKENS * CHUNK_TOKENS


def test_what_a_dying_node_left_unfinished_is_computed(
    nodes: list[Node], backend: Backend, reference: Reference
) -> None:
    """The last test: the first node is gone after it."""
    first, second = nodes
    before = backend.whole()
    (size,) = set(before)
    prompt = random_prompt(46, LENGTHS[-1])
    chunks = len(prompt) // CHUNK_TOKENS
    first.proxy.switch(Throttle(frozenset({Way.REQUESTS}), bytes_per_second=size))
    first.engine.ask([prompt])
    first.proxy.wait_passed(Way.REQUESTS, chunks * size // 2, timeout_seconds=10 * chunks)
    first.die()
    there = len(backend.whole()) - len(before)
    assert there < chunks, "it died too late to show anything"
    taken = second.engine.ask([prompt])
    assert taken[0].cached_tokens <= there * CHUNK_TOKENS
    assert_right(taken, reference.answers([prompt]))
    second.wait_stored()
    assert len(backend.whole()) == len(before) + chunks
