"""An adapter that answers on cue, and the client that it is asked through."""

from __future__ import annotations

from typing import Any

from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.jobs.queues import Inbox
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_devkit.cue_adapter import CueAdapter
from lmcache_devkit.fake_clock import FakeClock

SPACE = KeySpace("m", 1, 0, "", 16, HashChain.BLAKE3, bytes(16))
KEYS = [ObjectKey(SPACE, bytes([number]) * 32) for number in range(3)]


class AdapterHarness:
    def __init__(self) -> None:
        self.clock, self.adapter, self.inbox = FakeClock(), CueAdapter(), Inbox[Any]()
        self.client = AdapterClient(0, "cue", self.adapter, self.adapter.capabilities, self.clock, 30.0)

    def answers(self) -> list[Any]:
        self.client.deliver()
        return self.inbox.drain()
