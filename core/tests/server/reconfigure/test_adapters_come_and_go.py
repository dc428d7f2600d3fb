"""Adapters come, serve and go, while engines store and load: nothing is lost, nothing is left behind."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from contextlib import suppress

import pytest

from core.tests.injected import injected
from core.tests.server.changing_server import (
    CHUNKS,
    MEMORY,
    StartServer,
    nothing_is_left,
    prompt,
    read_back,
    recorded,
    state_of,
    store_in_l2,
)
from core.tests.server.test_controller_faults import wait_for
from lmcache_core.contracts.events import AdapterAdded, AdapterRemoved
from lmcache_core.contracts.server_control import NoSuchAdapterError
from lmcache_devkit.fake_engine import FakeEngine

TIMES = 5


def test_an_adapter_comes_serves_and_goes(start: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    adapters = server._parts.adapters
    with recorded(server, monkeypatch) as events, FakeEngine(server.info.engine_endpoint) as engine:
        added = adapters.add({**MEMORY, "eviction": {"eviction_policy": "LRU"}})
        assert (added.name, added.index, added.state) == ("memory", 0, "serving")
        assert added.eviction_policy == "LRU"
        assert {"l2-eviction-memory", "l2-listing-memory"} <= server.status()["threads"].keys()
        store_in_l2(engine, server, prompt(1))
        assert read_back(engine, prompt(1), "a") == CHUNKS
        removed = adapters.remove("memory", 5.0, False)
        assert removed.state in ("removed", "closing") or removed.seconds_left is not None
        wait_for(lambda: state_of(server, "memory") == "removed")
        engine.scheduler.clear()
        assert read_back(engine, prompt(1), "b") == 0
        again = adapters.add(MEMORY)
        assert (again.name, again.index) == ("memory", 1), "a number is never used twice, a name is"
        assert adapters.state("memory").state == "serving"
        nothing_is_left(server)
    assert [event for event in events if isinstance(event, AdapterAdded | AdapterRemoved)] == [
        AdapterAdded("memory", "memory"),
        AdapterRemoved("memory", True),
        AdapterAdded("memory", "memory"),
    ]
    threads = server.status()["threads"]
    assert not [name for name in threads if name.startswith(("l2-eviction", "l2-listing", "l2-removal"))]
    assert [row["name"] for row in server.status()["l2"]] == ["memory"]


def test_coming_and_going_leaves_nothing_behind(start: StartServer) -> None:
    server = start()
    adapters = server._parts.adapters

    def come_and_go() -> tuple[int, set[str]]:
        adapters.add({**MEMORY, "eviction": {"eviction_policy": "LRU"}})
        adapters.remove("memory", 1.0, False)
        wait_for(lambda: state_of(server, "memory") == "removed")
        gc.collect()
        return len(os.listdir("/proc/self/fd")), set(server.status()["threads"])

    before = come_and_go()
    for _ in range(TIMES):
        after = come_and_go()
    # Once in a while another thread of this process opens something meanwhile, and the last one's may be closed a moment later.
    wait_for(lambda: len(os.listdir("/proc/self/fd")) < before[0] + TIMES)
    assert after[1] == before[1]


def test_under_load_every_byte_is_right(start: StartServer) -> None:
    """Two engines, and an operator who does not leave them alone."""
    slow = injected(delay=0.5, error=0.05, also={"delay_seconds": 0.005})
    server = start(MEMORY, slow)
    adapters = server._parts.adapters
    stop = threading.Event()
    faults: list[BaseException] = []
    hits = [0, 0]

    def work(number: int) -> None:
        try:
            with FakeEngine(server.info.engine_endpoint, salt=f"s{number}") as engine:
                turn = 0
                while not stop.is_set():
                    tokens = prompt(1000 * number + turn % 7)
                    engine.store(tokens)
                    if turn % 3 == 0:
                        engine.scheduler.clear()
                    hits[number] += read_back(engine, tokens, f"{number}-{turn}")
                    turn += 1
        except BaseException as error:
            faults.append(error)
            raise

    engines = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for engine in engines:
        engine.start()
    for turn in range(6):
        for name in [state.name for state in adapters.states()]:
            with suppress(NoSuchAdapterError):  # its removal was under way and has ended since
                adapters.remove(name, 0.2, force=turn % 3 == 2)
        adapters.add(MEMORY)
        drained = adapters.add(slow).name
        adapters.drain(drained)
        server._parts.settings.change(
            {"eviction_ratio": 0.1 + turn / 100, "l2_store_max_backlog_gb": 0.001 * (turn + 1)}
        )
        time.sleep(0.05)
        adapters.resume(drained)
    stop.set()
    for engine in engines:
        engine.join(20)
    assert not faults
    assert min(hits) > 0
    wait_for(lambda: all(state.state == "serving" for state in adapters.states()))
    nothing_is_left(server)


def test_a_change_is_one_line_in_the_log(start: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    server = start(MEMORY)
    with caplog.at_level(logging.INFO):
        server._parts.adapters.add(MEMORY)
        server._parts.adapters.remove("memory-2", 1.0, False)
        wait_for(lambda: state_of(server, "memory-2") == "removed")
        server._parts.settings.change({"eviction_ratio": 0.3})
        logged = ("adapter added", "adapter removed", "setting changed")
        wait_for(lambda: all(each in caplog.text for each in logged))
    lines = [record.getMessage() for record in caplog.records]
    for word in (*logged, "was added", "was removed", "was changed"):
        assert len([line for line in lines if word in line]) == (word in logged), lines
