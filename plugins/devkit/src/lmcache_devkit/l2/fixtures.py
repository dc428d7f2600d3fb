"""What an author may override, and what the requirements are given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest

from lmcache_core.contracts.l2_adapter import L2Adapter
from lmcache_devkit.borrowed_memory import BorrowedMemory
from lmcache_devkit.l2.media import Media
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig
from lmcache_devkit.l2_driver import WAIT_SECONDS, L2Driver
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

LEFT_BEHIND = "lmcache_left_behind"
"""The property of a test's report with the objects that it could not delete."""


class L2Fixtures(OfferSuite):
    """Base of the requirements."""

    kind: ClassVar[str] = "l2_adapter"
    wait_seconds: ClassVar[float] = WAIT_SECONDS
    """How long an answer may take."""
    payload_bytes_max: ClassVar[int] = 64 * 2**20
    """The largest payload that is tried, where the adapter takes it."""
    open_close_rounds: ClassVar[int] = 1000
    """How often the adapter is opened and closed to see whether anything stays."""
    small_bytes: ClassVar[int] = 20 * OBJECT_BYTES + 100
    """The capacity that `small_settings` is to give the backend."""

    # --- what an author may give

    @pytest.fixture
    def small_settings(self, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Settings for an empty backend that holds `small_bytes` and no more.  None: such a backend is not available."""
        return None

    @pytest.fixture
    def media(self) -> Media | None:
        """The way to the bytes behind the adapter's back.  None: there is none.

        Of an adapter that is READ_ONLY, also the way in which objects come there, and it takes away at its end what it
        has put there.  Without it, only what needs no objects is checked."""
        return None

    @pytest.fixture
    def stalled(self) -> Callable[[], AbstractContextManager[None]] | None:
        """A context manager within which the backend answers nothing, for jobs that are submitted within it."""
        return None

    @pytest.fixture
    def failing(self) -> Callable[[], AbstractContextManager[None]] | None:
        """A context manager within which the backend answers every request with an error.  None: it cannot be made to."""
        return None

    # --- what the requirements are given

    @classmethod
    def teardown_class(cls) -> None:
        """The descriptor of a completion queue goes with its last owner; a later count of descriptors finds none."""
        gc.collect()

    @pytest.fixture
    def memory(self) -> BorrowedMemory:
        return BorrowedMemory(128 * 2**20)

    @pytest.fixture
    def rig(
        self,
        request: pytest.FixtureRequest,
        under_test: OpenableOffer,
        memory: BorrowedMemory,
        record_property: Callable[[str, object], None],
    ) -> Iterator[Rig]:
        # found when it is first needed: it may need the adapter that the rig has opened
        rig = Rig(under_test, memory, self.wait_seconds, lambda: request.getfixturevalue("media"))
        yield rig
        if left := rig.finish():
            record_property(LEFT_BEHIND, [f"{key.space.model_name} {key.object_id.hex()}" for key in left])

    @pytest.fixture
    def driver(self, rig: Rig) -> L2Driver:
        return rig.driver

    @pytest.fixture
    def adapter(self, driver: L2Driver) -> L2Adapter:
        """The adapter that the requirements work on, for the use of `media`, `stalled` and `failing`."""
        return driver.adapter
