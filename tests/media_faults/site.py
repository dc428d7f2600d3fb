"""A server above a medium, and an engine that compares every byte."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from demo.server_process import HOST, ServerProcess
from lmcache_devkit.fake_engine import FakeEngine
from tests.test_tenants import endpoint, lmcache

CHUNK_TOKENS = 16
CHUNKS = 6
HIDDEN = 1024
SLOT_BYTES = 2**17 + 4096
WAIT_SECONDS = 60.0
"""More than the circuit breaker may leave a backend alone for after an outage of a few seconds."""


class Site:
    """One thread.  Prompts are numbered, and each is stored once."""

    def __init__(self, server: ServerProcess, *, timeout_seconds: float = 30.0) -> None:
        """`timeout_seconds`: what the engine is not answered within, raises."""
        self._server = server
        server.status()  # the admin API is up
        self._engine = FakeEngine(endpoint(server), layers=2, hidden=HIDDEN, timeout_seconds=timeout_seconds)
        self._engine.register()
        self._requests = 0

    def beside(self) -> Site:
        """Another engine of the same server."""
        return Site(self._server)

    def close(self) -> None:
        """Leave, as an engine does."""
        self._engine.close()

    def stop(self) -> None:
        """End the server, in good order."""
        assert self._server.stop() == 0

    # --- what an engine does

    def store(self, *numbers: int) -> None:
        """Into L1, which always takes it, and on its way to L2."""
        for number in numbers:
            assert self._engine.store(prompt(number), f"store {number}")

    def settle(self) -> None:
        """Until the adapter has answered for everything, also for what it has not received yet."""
        wait_for(lambda: not self.status["store"]["backlog_bytes"])
        wait_for(lambda: not self.account["waiting"] and not self.account["in_flight"])

    def clear(self) -> None:
        """Drop what has no references from L1."""
        self._engine.scheduler.clear()

    def forget_l1(self) -> None:
        """Until nothing is in L1 any more."""
        self.clear()
        wait_for(lambda: self.status["l1"]["cached"] == 0)

    def hits(self, number: int) -> int:
        """Chunks that are served, every byte of them right."""
        self._requests += 1
        request = f"read {self._requests}"
        found = self._engine.lookup(prompt(number), request)
        if found:
            right = [self._engine.content(prompt(number), chunk) for chunk in range(found)]
            assert self._engine.retrieve(prompt(number), request, 0, found * CHUNK_TOKENS) == right
        self._engine.end(request)
        return found

    # --- what an operator sees

    @property
    def status(self) -> dict[str, Any]:
        return self._server.status()

    @property
    def adapter(self) -> dict[str, Any]:
        (adapter,) = self.status["l2"]
        return dict(adapter)

    @property
    def account(self) -> dict[str, Any]:
        (account,) = self.status["store"]["adapters"].values()
        return dict(account)

    @property
    def circuit(self) -> str:
        return str(self.adapter["circuit"]["state"])

    def page(self) -> str:
        """What `lmcache status` prints."""
        return lmcache(self._server, "status", code=0 if self.status["healthy"] else 1)

    def conditions(self) -> set[str]:
        """Names of what is said about the adapter."""
        subject = f"adapter {self.adapter['name']}"
        return {each["name"] for each in self.status["conditions"] if each["subject"] == subject}

    def serves(self) -> bool:
        """The answer to a probe."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._server.http_port}/healthcheck", timeout=10) as answer:
                return json.load(answer)["status"] in ("healthy", "degraded")
        except urllib.error.HTTPError as error:
            with error:
                return False

    def check_books(self) -> None:
        """Whatever happened below, nothing of it is left above."""
        account, status = self.account, self.status
        ended = account["stored"] + account["failed"] + account["dropped"]
        assert account["admitted"] == ended + account["waiting"] + account["in_flight"]
        assert status["l1"]["quarantined"] == 0
        assert status["l1"]["state_counts_add_up"]
        assert not [name for name, thread in status["threads"].items() if thread["restarts"]]


def prompt(number: int) -> list[int]:
    return [number, *range(CHUNKS * CHUNK_TOKENS - 1)]


def options(adapter: Mapping[str, Any], *more: str) -> list[str]:
    """Of a small server with this adapter."""
    small = ["--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK_TOKENS), "--eviction-policy", "LRU"]
    return [*small, "--l2-adapter", json.dumps(adapter), *more]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
