"""Hand-offs: what an engine says of those that it gives, and how it waits for those that it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.scheduler_rig import CHUNK, PROMPT, SETTINGS, Rig
from lmcache_client import EngineChannel, EngineKey, LMCacheError, encode_tokens
from lmcache_client.handoff import HANDOFF_CHUNK, HANDOFF_COMPLETE, HANDOFF_OPEN
from lmcache_vllm.handoffs import Handoff, HandoffParams
from lmcache_vllm.metadata import WorkerReport
from lmcache_vllm.server_link import ServerLink
from lmcache_vllm.settings import Settings

GIVES = replace(PROMPT, handoff=Handoff("h", gives=True))
TAKES = replace(PROMPT, handoff=Handoff("h", gives=False))


def steps(rig: Rig) -> list[str]:
    assert {handoff_id for _, handoff_id, _ in rig.server.handed_over} <= {"h"}
    return [name.removeprefix("handoff_") for name, _, _ in rig.server.handed_over]


def test_it_is_complete_when_the_last_store_is_over() -> None:
    rig = Rig(workers=2)
    rig.side.on_new_request(GIVES)
    first = rig.step(0, 16).stores
    second = rig.step(16, 16).stores
    assert len(first) == len(second) == 1
    rig.side.on_worker_results(WorkerReport({first[0].id: 2}), ())
    assert steps(rig) == ["open", "chunk"]
    assert rig.side.handed_over("r", computed=True) == 32
    rig.side.on_finished("r")
    rig.side.on_worker_results(WorkerReport({second[0].id: 1}), ())
    assert steps(rig) == ["open", "chunk"], "the other worker still stores"
    rig.side.on_worker_results(WorkerReport({second[0].id: 1}), ())
    assert steps(rig) == ["open", "chunk", "chunk", "complete"]


@pytest.mark.parametrize("save_tail", [False, True])
def test_it_names_its_prompt_once_and_then_says_how_many_chunks_are_stored(save_tail: bool) -> None:
    """With the prompt's tail, as a lookup does; the second chunk is there already."""
    prompt = replace(GIVES, tokens=GIVES.tokens[:20], prompt_tokens=20)
    rig = Rig(replace(SETTINGS, save_tail=save_tail))
    rig.store(prompt, CHUNK)
    rig.load(prompt)
    stores = [*rig.step(8, 8).stores, *rig.step(16, 4).stores]
    assert len(stores) == 1 + save_tail
    for store in stores:
        rig.side.on_worker_results(WorkerReport({store.id: 1}), ())
    rig.side.handed_over("r", computed=True)
    (_, _, (opened,)), *rest = rig.server.handed_over
    assert opened == rig.server.keys[0]
    assert [(name.removeprefix("handoff_"), facts) for name, _, facts in rest] == [
        ("chunk", (2,)),
        *([("chunk", (3,))] if save_tail else []),
        ("complete", ()),
    ]


def test_a_prompt_is_named_when_its_name_is_known() -> None:
    rig = Rig(model_name="")
    rig.side.on_new_request(GIVES)
    store = rig.step(0, 16).stores[0]
    assert steps(rig) == []
    rig.side.on_worker_results(WorkerReport({store.id: 1}, model_names=frozenset({"model"})), ())
    assert steps(rig) == ["open", "chunk"]


def test_one_without_stores_is_complete_at_once() -> None:
    rig = Rig()
    rig.store(GIVES, 32)
    rig.load(GIVES)
    assert rig.side.handed_over("r", computed=True) == 32
    assert steps(rig) == ["open", "complete"]


@pytest.mark.parametrize("how", ["aborted", "closed"])
def test_one_whose_prompt_is_not_computed_is_cancelled(how: str) -> None:
    rig = Rig()
    rig.side.on_new_request(GIVES)
    rig.step(0, 16)
    if how == "aborted":
        assert rig.side.handed_over("r", computed=False) is None
        rig.side.on_finished("r")
    rig.side.close()
    assert steps(rig) == ["open", "cancel"]


@pytest.mark.parametrize("facts", [PROMPT, TAKES, replace(GIVES, skip_reason="opt_out")])
def test_other_requests_hand_nothing_over(facts: object) -> None:
    rig = Rig()
    rig.side.on_new_request(facts)  # type: ignore[arg-type]
    rig.step(0, 16)
    assert rig.side.handed_over("r", computed=True) is None
    assert rig.server.handed_over == []


def test_the_time_of_a_lookup_begins_when_its_hand_off_is_over() -> None:
    rig = Rig(at_once=False)
    over: Future[None] = Future()
    rig.server.handoff_over = over
    rig.side.on_new_request(TAKES)
    rig.now = 100.0
    assert rig.side.matched_tokens("r", 0) == (None, False)
    over.set_result(None)
    rig.now += SETTINGS.lookup_timeout_ms / 1000 - 0.01
    assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.now += 0.02
    assert rig.side.matched_tokens("r", 0) == (0, False), "the server is as slow as for any other lookup"


# What proxies say

ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


def test_what_prefill_answers_decode_understands() -> None:
    settings = Settings(url="tcp://10.0.0.7:5556", pd_role="both")
    prefill, decode = HandoffParams(settings, "engine 1"), HandoffParams(settings, "engine 2")
    for given in ({}, {"lmcache.handoff_id": "chosen"}):
        handoff = prefill.read({**ASKED, **given}, "r1")
        assert handoff is not None
        assert handoff.gives
        answer = prefill.write(handoff, "r1", 480, "server 1")
        assert (answer["remote_host"], answer["remote_port"], answer["remote_num_tokens"]) == ("10.0.0.7", 5556, 480)
        assert decode.read(answer, "r2") == replace(handoff, gives=False, server="server 1")
    answer.pop("lmcache.handoff_id")
    assert decode.read(answer, "r2") == Handoff("engine 1/r1", gives=False, server="server 1")
    for server in (None, 7, "x" * 300):
        assert decode.read({**answer, "lmcache.handoff_server": server}, "r2") == Handoff("engine 1/r1", gives=False)


def test_decode_that_is_asked_at_the_same_time_waits_for_it_to_be_opened() -> None:
    params = {"do_remote_prefill": True, "lmcache.handoff": True, "lmcache.handoff_id": "h"}
    decode = HandoffParams(Settings(pd_role="receiver"), "e")
    assert decode.read(params, "r") == Handoff("h", gives=False, may_open_later=True)


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_prefill": True, "lmcache.handoff": True},
        {"do_remote_prefill": True, "remote_engine_id": "nixl", "remote_request_id": "r", "remote_block_ids": [1]},
        {"do_remote_prefill": True, "lmcache.handoff": True, "lmcache.handoff_id": ["x"]},
        {"do_remote_prefill": True, "lmcache.handoff": True, "lmcache.handoff_id": "x" * 300},
    ],
)
def test_parameters_of_others_are_left_alone(params: object) -> None:
    assert HandoffParams(Settings(pd_role="both"), "e").read(params, "r") is None


@pytest.mark.parametrize(
    ("role", "gives", "takes"),
    [("none", 0, 0), ("producer", 1, 0), ("sender", 1, 0), ("receiver", 0, 1), ("both", 1, 1)],
)
def test_a_role(role: str, gives: int, takes: int) -> None:
    settings = Settings.of({"lmcache.pd_role": role})
    assert settings.save_tail is (role != "none")
    params = HandoffParams(settings, "e")
    assert bool(params.read(ASKED, "r")) == gives
    assert (
        bool(params.read({"do_remote_prefill": True, "lmcache.handoff": True, "lmcache.handoff_id": "h"}, "r")) == takes
    )


def test_a_role_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"lmcache.pd_role.*none, producer, sender, receiver, both"):
        Settings.of({"lmcache.pd_role": "prefill"})


# With a server

PROGRESS_SECONDS = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK), "--eviction-policy", "LRU"]
    with ServerProcess(options, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


@pytest.fixture
def link(server: ServerProcess) -> Iterator[ServerLink]:
    url = f"tcp://127.0.0.1:{server.port}"
    link = ServerLink(Settings(url=url, timeout_seconds=5.0, handoff_progress_seconds=PROGRESS_SECONDS))
    deadline = time.monotonic() + 10
    while link.server is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield link
    link.close()


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[EngineChannel]:
    with EngineChannel(f"tcp://127.0.0.1:{server.port}") as channel:
        yield channel


def key(request_id: str) -> EngineKey:
    return EngineKey("model", 1, None, encode_tokens(range(CHUNK)), 0, CHUNK, request_id)


def test_it_looks_up_when_the_hand_off_is_over(link: ServerLink, channel: EngineChannel) -> None:
    asked = link.look_up(key("over"), Handoff("over", gives=False, may_open_later=True))
    assert asked is not None
    assert asked.handoff_over is not None
    for step, *facts in ((HANDOFF_OPEN, key("g")), (HANDOFF_CHUNK, 0), (HANDOFF_CHUNK, 1)):
        channel.call(step, "over", *facts)
        assert not asked.handoff_over.done()
    channel.call(HANDOFF_COMPLETE, "over")
    asked.handoff_over.result(5)
    asked.accepted.result(5)
    assert asked.chunks.result(5) == 0


@pytest.mark.parametrize("is_open", [False, True])
def test_it_does_not_wait_without_progress(link: ServerLink, channel: EngineChannel, is_open: bool) -> None:
    if is_open:
        channel.call(HANDOFF_OPEN, "half way", key("g"))
        channel.call(HANDOFF_CHUNK, "half way", 1)
    asked = link.look_up(key("half way"), Handoff("half way", gives=False))
    assert asked is not None
    assert asked.chunks.result(5) == 0


def test_one_of_another_server_is_not_waited_for_where_there_is_no_peer(link: ServerLink) -> None:
    asked = link.look_up(key("elsewhere"), Handoff("elsewhere", gives=False, may_open_later=True, server="elsewhere"))
    assert asked is not None
    assert asked.chunks.result(PROGRESS_SECONDS / 2) == 0


def test_one_of_the_own_server_is_not_followed(link: ServerLink, channel: EngineChannel) -> None:
    hello = channel.hello()
    assert hello is not None
    channel.call(HANDOFF_OPEN, "own", key("g"))
    asked = link.look_up(key("own"), Handoff("own", gives=False, server=hello.instance_id))
    assert asked is not None
    assert asked.handoff_over is not None
    channel.call(HANDOFF_CHUNK, "own", 1)
    assert not asked.handoff_over.done()
    channel.call(HANDOFF_COMPLETE, "own")
    assert asked.chunks.result(5) == 0


def test_a_request_that_is_over_is_not_looked_up(
    link: ServerLink, channel: EngineChannel, server: ServerProcess
) -> None:
    asked = link.look_up(key("ended"), Handoff("ended", gives=False, may_open_later=True))
    assert asked is not None
    link.end("ended")
    channel.call(HANDOFF_COMPLETE, "ended")
    with pytest.raises(LMCacheError, match="does not wait"):
        asked.chunks.result(5)
    again = link.look_up(key("ended"), Handoff("ended", gives=False))
    assert again is not None
    assert again.chunks.result(5) == 0
