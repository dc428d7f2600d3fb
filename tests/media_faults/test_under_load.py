"""A medium breaks again and again while engines store and read: no byte is wrong, and in the end all is well."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.media_faults.adapters import FS_NATIVE, MADE
from tests.media_faults.conftest import OpenSite
from tests.media_faults.medium import CuedMedium
from tests.media_faults.site import CHUNKS, Site, wait_for

OUTAGES = (("all", "EIO"), ("changes", "EROFS"), ("growth", "ENOSPC"), ("all", "EIO"))
OUTAGE_SECONDS, PAUSE_SECONDS = 0.4, 0.6
PROMPTS = 20
"""Of each engine: the objects of both find room on the smallest medium."""


@pytest.mark.parametrize(
    "adapter", [FS_NATIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in MADE if name != FS_NATIVE)]
)
def test_no_byte_is_wrong_while_the_medium_comes_and_goes(
    medium: CuedMedium, open_site: OpenSite, adapter: str
) -> None:
    site = open_site(MADE[adapter](medium.root))
    engines = [_Engine(site, number) for number in range(2)]
    for engine in engines:
        engine.start()
    for outage in OUTAGES:
        time.sleep(PAUSE_SECONDS)
        medium.fail(*outage)
        time.sleep(OUTAGE_SECONDS)
        medium.repair()
    wait_for(lambda: any(engine.read for engine in engines) and site.account["failed"] > 0)
    for engine in engines:
        engine.end()
    wait_for(lambda: _stores_again(site))
    wait_for(lambda: _reads_again(site))
    site.settle()
    site.check_books()


def _stores_again(site: Site) -> bool:
    stored = site.account["stored"]
    number = random.randrange(10**6, 10**9)
    site.store(number)
    site.settle()
    return bool(site.account["stored"] == stored + CHUNKS)


def _reads_again(site: Site) -> bool:
    """The medium is asked for what it has: reading has a circuit of its own."""
    number = random.randrange(10**6, 10**9)
    site.store(number)
    site.settle()
    site.forget_l1()
    site.hits(number)
    return site.circuit == "closed"


class _Engine(threading.Thread):
    """Stores prompts and reads them back, out of L1 or, once that was cleared, from the medium."""

    def __init__(self, site: Site, number: int) -> None:
        super().__init__(daemon=True)
        self.read = 0
        self._site = site.beside()
        self._first = 1000 * (number + 1)
        self._random = random.Random(number)
        self._stopping = threading.Event()
        self._fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                number = self._first + self._random.randrange(PROMPTS)
                self._site.store(number)
                if self._random.random() < 0.3:
                    self._site.clear()
                self.read += self._site.hits(self._first + self._random.randrange(PROMPTS))
        except BaseException as fault:  # noqa: BLE001 - raised by `end`, in the test's own thread
            self._fault = fault

    def end(self) -> None:
        """Raises what was found wrong."""
        self._stopping.set()
        self.join(60)
        assert not self.is_alive()
        self._site.close()
        if self._fault is not None:
            raise self._fault
