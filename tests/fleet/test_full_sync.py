"""A coordinator that starts again reads everything that a server has, while engines store as fast as they can."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from demo.server_process import ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.fleet.test_rounds import directory_wrong, l1_keys, seconds_until
from tests.fleet.test_two_servers import CHUNK_TOKENS, CHUNKS, prompt, wait_for
from tests.remote.tcp_proxy import TcpProxy, Throttle, Way

FREEZE_MAX_SECONDS: Final = 3.0
MARGIN_SECONDS: Final = 1.0
"""Until an engine of a crowded machine has stored again."""
QUIET_SECONDS: Final = 40.0
FIRST_PROMPTS: Final = 700
"""More keys than the journal has, so that only a snapshot has all."""
SLOW: Final = Throttle(ways=frozenset({Way.REQUESTS}), bytes_per_second=8_000)
"""A snapshot takes seconds, and a heartbeat does not."""


class Stores:
    """Of one engine, each of new chunks, until `running` is left."""

    def __init__(self, server: ServerProcess) -> None:
        self._endpoint = f"tcp://127.0.0.1:{server.port}"
        self._numbers = count()
        self._ended = threading.Event()
        self.stored = 0
        self.refused = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def some(self, number: int) -> None:
        with FakeEngine(self._endpoint, salt="a") as engine:
            for _ in range(number):
                self._one(engine)

    def _run(self) -> None:
        with FakeEngine(self._endpoint, salt="a") as engine:
            while not self._ended.is_set():
                self._one(engine)

    def _one(self, engine: FakeEngine) -> None:
        tokens = prompt(next(self._numbers))
        key = engine.key(tokens, "r", 0, len(tokens))
        slots = engine.worker.prepare_store(key, engine.instance_id).context.slots
        assert isinstance(slots, tuple)
        if len(slots) < CHUNKS:
            self.refused += 1
            time.sleep(0.001)
        for chunk, slot in enumerate(slots):
            engine.write(slot, engine.content(tokens, chunk))
        if slots:
            assert engine.worker.commit_store(key, engine.instance_id)
            self.stored += 1


class Site:
    def __init__(self, folder: Path, stack: ExitStack, mode: str) -> None:
        self.coordinator = stack.enter_context(
            CoordinatorProcess(folder, "--sync-mode", mode, "--instance-timeout", "60")
        )
        self.line = stack.enter_context(TcpProxy(self.coordinator.port))
        options = [
            *("--l1-size-gb", "0.02", "--l1-journal-entries", "1000", "--chunk-size", str(CHUNK_TOKENS)),
            *("--coordinator-url", f"http://{self.line.endpoint}", "--instance-id", "server"),
            *("--coordinator-heartbeat-interval", "0.2", "--coordinator-l2-event-flush-interval", "0.1"),
            *("--freeze-max-seconds", str(FREEZE_MAX_SECONDS)),
        ]
        self.server = stack.enter_context(ServerProcess(options, folder / "server.log"))
        self.stores = Stores(self.server)
        self.stores.some(FIRST_PROMPTS)
        seconds_until(self.wrong, QUIET_SECONDS)

    def wrong(self) -> str:
        return directory_wrong(self.coordinator, {"server": l1_keys(self.server)})

    def refused_as_frozen(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.http_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return any(line.startswith("lmcache_mp_l1_allocation_failure") and '"frozen"' in line for line in lines)

    def knows_something(self) -> bool:
        rows = self.coordinator.ask("GET", "/directory/stats").body["keys_by_location"]
        return any(row["keys"] for row in rows)


def test_live_refuses_no_store_and_misses_no_key(tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, "live")
        with site.stores.running():
            for _ in range(2):
                site.coordinator.kill()
                site.coordinator.start()
                wait_for(site.knows_something, lambda: "nothing is known")
            wait_for(lambda: site.stores.stored > 2 * FIRST_PROMPTS, lambda: "stores do not go on")
        seconds_until(site.wrong, QUIET_SECONDS)
        assert not site.refused_as_frozen()  # L1 may be full for a moment


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.slow
def test_a_freeze_ends_with_the_snapshot_or_at_its_bound_when_the_coordinator_dies(tmp_path: Path, dies: bool) -> None:
    with ExitStack() as stack:
        site = Site(tmp_path, stack, "freeze")
        site.coordinator.kill()
        site.line.switch(SLOW)
        before = site.stores.refused
        with site.stores.running():
            site.coordinator.start()
            wait_for(lambda: site.stores.refused > before, lambda: "no store was refused")
            if dies:
                site.coordinator.kill()
            stored = site.stores.stored
            bound = FREEZE_MAX_SECONDS + MARGIN_SECONDS
            wait_for(lambda: site.stores.stored > stored, lambda: "stores are refused still", bound)
        assert site.refused_as_frozen()
        if not dies:
            seconds_until(site.wrong, QUIET_SECONDS)
