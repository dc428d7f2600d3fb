"""Whatever a device does with its jobs, no slot is served before it is whole, or reused while it may still be touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lmcache_core import EngineKey, MemoryRegion, encode_tokens
from lmcache_core.testing.module_bench import CHUNK_TOKENS, ModuleBench
from lmcache_kv_layout import PagedGroup
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.descriptors import Storage
from lmcache_transfer_torch.device import DeviceError, Done, TransferJob, WorkerMemory
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.messages import EngineGroupInfo, Hints
from lmcache_transfer_torch.module import LMCacheDrivenModule
from lmcache_transfer_torch.transfer import IN_FLIGHT_MAX
from plugins.transfer_torch.tests.driven_engine import extension

SHAPE = [64, 2, 4, 32]
METADATA = {"dtype": "float32", "shape": SHAPE, "stride": [256, 128, 32, 1], "storage_offset": 0, "device_uuid": "cpu"}
TENSORS = [
    extension({"type": "cpu_shm", "shm_name": f"/{name}", "nbytes": 65536, "version": 1, "metadata": METADATA})
    for name in ("one", "two")
]
BLOCKS = [list(range(1, 13))]
TOKENS = list(range(3 * CHUNK_TOKENS))
NO, YES = (b"", False), (b"event", True)
WORKER = 7


class CueDevice:
    """Does with each job what it is told next: `now`, `fail`, `later`, `refuse`, `raise`, `twice`."""

    name = "cpu"

    def __init__(self) -> None:
        self.does = "now"
        self.waiting: list[Done] = []
        self.jobs: list[TransferJob] = []
        self.closed = self.memories = self.swift_bytes = 0
        self.forgets = False
        self.opening: Exception | None = None

    def open_memory(self, storages: Sequence[Storage], groups: Sequence[PagedGroup], chunk_tokens: int) -> WorkerMemory:
        if self.opening:
            raise self.opening
        self.memories += 1
        return CueMemory(self)

    def submit(self, job: TransferJob, done: Done) -> bytes:
        self.jobs.append(job)
        match self.does:
            case "now":
                done(True)
            case "twice":
                done(True)
                done(False)
            case "fail":
                done(False)
            case "refuse":
                raise DeviceError("no")
            case "raise":
                raise RuntimeError("a driver's own")
            case _:
                self.waiting.append(done)
        return b"event"

    def finish(self, arrived: bool = True) -> None:
        self.waiting.pop(0)(arrived)

    def status(self) -> dict[str, object]:
        return {"waiting": len(self.waiting)}

    def close(self) -> None:
        self.closed += 1
        while self.waiting and not self.forgets:
            self.finish(False)


class CueMemory:
    @property
    def swift_bytes(self) -> int:
        return self._device.swift_bytes

    def __init__(self, device: CueDevice) -> None:
        self._device = device

    def submit_gather(self, job: TransferJob, done: Done) -> bytes:
        return self._device.submit(job, done)

    def submit_scatter(self, job: TransferJob, done: Done) -> bytes:
        return self._device.submit(job, done)

    def close(self) -> None:
        self._device.memories -= 1


class Site:
    """The module over real storage, with one worker."""

    def __init__(self, region: MemoryRegion | None = None) -> None:
        self.bench = ModuleBench()
        self.device = CueDevice()
        chosen = TransferSettings.model_validate({})
        context = replace(self.bench.context, region=region)
        devices = Devices(chosen, context, {"cpu": lambda *_: self.device})
        self.module = LMCacheDrivenModule(context, devices, chosen)
        self.handlers = {handler.operation.name: handler for handler in self.module.handlers()}
        self.register()

    def register(self) -> None:
        self.call("register_kv_cache", WORKER, TENSORS, "m", 1, "vllm", Hints(kv_layout="HND"), list[EngineGroupInfo]())

    def call(self, name: str, *payload: Any) -> Any:
        return self.bench.call(self.handlers[name], *payload)

    def key(self, request: str = "r", first: int = 0) -> EngineKey:
        return EngineKey("m", 1, 0, encode_tokens(TOKENS), first, len(TOKENS), request)

    def store(self) -> tuple[bytes, bool]:
        answer: tuple[bytes, bool] = self.call("store", self.key(), WORKER, BLOCKS, b"")
        return answer

    def retrieve(self) -> tuple[bytes, bool]:
        answer: tuple[bytes, bool] = self.call("retrieve", self.key(), WORKER, BLOCKS, b"", 0)
        return answer

    def unregister(self) -> None:
        self.call("unregister_kv_cache", WORKER)

    @property
    def status(self) -> dict[str, Any]:
        return self.module.status()

    def held(self) -> tuple[int, int]:
        census = self.bench.storage.census()
        assert census.holds
        self.bench.cache.audit()
        return census.held, census.quarantined

    def cached(self) -> int:
        return self.bench.storage.census().cached

    def close(self) -> None:
        self.module.close()
        self.bench.everybody_leaves()
        assert self.held() == (0, 0)
        self.bench.__exit__(None, None, None)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


def test_the_site_works(site: Site) -> None:
    assert site.store() == YES
    assert site.retrieve() == YES
    assert (site.held(), site.cached()) == ((0, 0), 3)
    assert [part.blocks.tolist() for part in site.device.jobs[0].parts] == BLOCKS  # type: ignore[attr-defined]


@pytest.mark.parametrize("does", ["fail", "refuse"])
def test_a_store_that_fails_leaves_nothing(site: Site, does: str) -> None:
    site.device.does = does
    assert site.store() == NO
    assert (site.held(), site.cached()) == ((0, 0), 0)
    assert site.status["transfers_failed"] == 1
    site.device.does = "now"
    assert site.store() == YES


@pytest.mark.parametrize("does", ["fail", "refuse"])
def test_a_retrieve_that_fails_lets_go(site: Site, does: str) -> None:
    site.store()
    site.device.does = does
    assert site.retrieve() == NO
    assert (site.held(), site.cached()) == ((0, 0), 3)
    assert site.status["retrieved_bytes"] == 0


def test_a_store_is_visible_when_its_bytes_are_there(site: Site) -> None:
    site.device.does = "later"
    assert site.store() == YES
    assert (site.held(), site.cached()) == ((3, 0), 0)
    assert site.retrieve() == NO
    assert site.status["transfers_in_flight"] == 1
    site.device.finish()
    assert (site.held(), site.cached()) == ((0, 0), 3)
    assert site.status["transfers_in_flight"] == 0


def test_a_store_that_fails_later_is_never_visible(site: Site) -> None:
    site.device.does = "later"
    assert site.store() == YES
    site.device.finish(False)
    assert (site.held(), site.cached()) == ((0, 0), 0)


def test_what_is_being_read_cannot_leave(site: Site) -> None:
    site.store()
    site.device.does = "later"
    assert site.retrieve() == YES
    site.bench.storage.clear(force=True)
    assert site.held() == (3, 0)
    site.device.finish()
    assert (site.held(), site.cached()) == ((0, 0), 0)


@pytest.mark.parametrize("arrived", [True, False])
def test_a_worker_that_leaves_meanwhile(site: Site, arrived: bool) -> None:
    """Its slots stay as they are while the device may touch them, and what comes then is published for nobody."""
    site.device.does = "later"
    site.store()
    site.unregister()
    assert site.device.memories == 0
    assert site.held() == (0, 3)
    site.device.finish(arrived)
    assert (site.held(), site.cached()) == ((0, 0), 0)


def test_a_deadline_that_passes_meanwhile(site: Site) -> None:
    site.device.does = "later"
    site.store()
    site.bench.clock.advance(1000)
    site.bench.storage.expire()
    assert site.held() == (0, 3)
    site.device.finish()
    assert (site.held(), site.cached()) == ((0, 0), 0)


def test_a_device_that_raises_what_it_likes_keeps_its_slots(site: Site) -> None:
    """Nobody knows what it has begun."""
    site.device.does = "raise"
    assert site.store() == NO
    assert site.held() == (3, 0)
    site.unregister()
    assert site.held() == (0, 3)


def test_a_device_that_answers_twice_is_heard_once(site: Site) -> None:
    site.device.does = "twice"
    assert site.store() == YES
    assert site.retrieve() == YES
    assert (site.held(), site.cached()) == ((0, 0), 3)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_device_that_never_answers_until_it_is_closed(forgets: bool) -> None:
    site = Site()
    site.device.does, site.device.forgets = "later", forgets
    site.store()
    assert site.held() == (3, 0)
    site.module.close()
    assert (site.held(), site.cached(), site.device.memories) == ((0, 0), 0, 0)
    site.close()


def test_transfers_of_one_worker_are_bounded(site: Site) -> None:
    site.store()
    site.device.does = "later"
    for _ in range(IN_FLIGHT_MAX):
        assert site.retrieve() == YES
    with pytest.raises(Exception, match=f"{IN_FLIGHT_MAX} transfers under way"):
        site.retrieve()
    site.device.finish()
    assert site.retrieve() == YES
    while site.device.waiting:
        site.device.finish()


def test_answers_from_other_threads(site: Site) -> None:
    site.device.does = "later"
    site.store()
    thread = threading.Thread(target=site.device.finish)
    thread.start()
    thread.join()
    assert site.cached() == 3


@pytest.mark.parametrize("error", [DeviceError("not here"), RuntimeError("a driver's own"), ImportError("no torch")])
def test_memory_that_cannot_be_had(error: Exception) -> None:
    site = Site()
    site.unregister()
    site.device.opening = error
    site.register()
    assert site.store() == NO
    assert [str(error) in reason for reason in site.status["registrations_refused"]] == [True]
    site.close()


def test_status_does_not_wait_for_a_device_that_is_being_opened() -> None:
    """A driver may take seconds to start, and health is asked for meanwhile."""
    begun, go_on = threading.Event(), threading.Event()
    site = Site()

    def slow(*_: object) -> CueDevice:
        begun.set()
        assert go_on.wait(10)
        return CueDevice()

    devices = Devices(TransferSettings.model_validate({}), site.bench.context, {"cuda": slow})
    opening = threading.Thread(target=devices.get, args=("cuda",))
    opening.start()
    answers: list[dict[str, object]] = []
    asking = threading.Thread(target=lambda: answers.append(devices.status()))
    try:
        assert begun.wait(10)
        asking.start()
        asking.join(5)
        assert answers == [{}]
    finally:
        go_on.set()
        opening.join(10)
        asking.join(10)
    assert devices.status() == {"cuda": {"waiting": 0}}
    devices.close()
    site.close()


def test_a_file_is_fetched_before_a_device_touches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is a failed transfer, not a dead server."""
    site = Site(MemoryRegion(1, 1, memoryview(b""), descriptor=3))
    storage = site.bench.storage
    fetch, fetched = storage.payload, list[int]()

    def payload(slot: int) -> memoryview:
        fetched.append(slot)
        if len(fetched) % 3 == 0:
            raise OSError("the disk is gone")
        return fetch(slot)

    assert site.store() == YES
    monkeypatch.setattr(storage, "payload", payload)
    with pytest.raises(OSError, match="disk"):
        site.retrieve()
    assert (len(set(fetched)), site.held()) == (3, (0, 0))
    site.close()


# Any order of it


class Machine(RuleBasedStateMachine):
    """What is visible was said to have arrived, and everything is given back."""

    @initialize()
    def begin(self) -> None:
        self.site = Site()

    @rule(does=st.sampled_from(["now", "fail", "later", "refuse", "twice"]))
    def told(self, does: str) -> None:
        self.site.device.does = does

    @rule()
    def stores(self) -> None:
        self.site.store()

    @rule()
    def retrieves(self) -> None:
        before = self.site.cached()
        if self.site.retrieve()[1]:
            assert before == 3

    @rule(arrived=st.booleans(), which=st.integers(0, 5))
    def answers(self, arrived: bool, which: int) -> None:
        if self.site.device.waiting:
            self.site.device.waiting.pop(which % len(self.site.device.waiting))(arrived)

    @rule()
    def leaves(self) -> None:
        self.site.unregister()

    @rule()
    def comes(self) -> None:
        self.site.register()

    @rule(seconds=st.sampled_from([1, 301, 601]))
    def time_passes(self, seconds: int) -> None:
        self.site.bench.clock.advance(seconds)
        self.site.bench.storage.expire()

    @rule(force=st.booleans())
    def clears(self, force: bool) -> None:
        self.site.bench.storage.clear(force)

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "site"):
            self.site.held()
            assert self.site.status["transfers_in_flight"] == len(self.site.device.waiting)

    def teardown(self) -> None:
        if hasattr(self, "site"):
            self.site.close()


def test_any_order_of_jobs_answers_and_departures() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize=True,
        ),
    )
