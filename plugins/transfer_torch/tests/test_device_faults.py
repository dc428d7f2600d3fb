"""Whatever a device does with its jobs, no slot is served before it is whole, or reused while it may still be touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lmcache_core import MemoryRegion
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.device import DeviceError
from lmcache_transfer_torch.devices import Devices
from lmcache_transfer_torch.transfer import IN_FLIGHT_MAX
from plugins.transfer_torch.tests.cue_site import BLOCKS, NO, YES, CueDevice, Site


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
def test_a_retrieve_that_fails_releases_its_slots(site: Site, does: str) -> None:
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
    """Its slots stay as they are while the device may touch them, and what comes then is not published."""
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
    """It is unknown what it has begun."""
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
def test_memory_that_is_not_available(error: Exception) -> None:
    site = Site()
    site.unregister()
    site.device.opening = error
    site.register()
    assert site.store() == NO
    assert [str(error) in reason for reason in site.status["registrations_refused"]] == [True]
    site.close()


def test_status_does_not_wait_for_a_device_that_is_being_opened() -> None:
    """A driver may take seconds to start, and health is asked for meanwhile."""
    started, go_on = threading.Event(), threading.Event()
    site = Site()

    def slow(*_: object) -> CueDevice:
        started.set()
        assert go_on.wait(10)
        return CueDevice()

    devices = Devices(TransferSettings.model_validate({}), site.bench.context, {"cuda": slow})
    opening = threading.Thread(target=devices.get, args=("cuda",))
    opening.start()
    answers: list[dict[str, object]] = []
    asking = threading.Thread(target=lambda: answers.append(devices.status()))
    try:
        assert started.wait(10)
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
