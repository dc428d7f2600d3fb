"""A site whose engine serves many clients at once, and whose L1 is too small for what they ask."""

from __future__ import annotations

import time
from pathlib import Path

from tests.engine.concurrent_engine import ConcurrentEngine
from tests.engine.site import HEARTBEAT_SECONDS, Site
from tests.engine.stock_limits import known_end

CHUNK_TOKENS = 32
L1_GIB = "0.03125"
"""About 240 chunks: far less than what one wave of clients asks for."""
RPC_SECONDS = 10.0
"""How long an engine waits for an answer that died with its server.  Stock is 300 s, and then every test of a crash
takes as long."""
IDLE_SECONDS = 0.1
"""A server that was asked nothing for so long has answered what it was asked before."""
REAP_SECONDS = 15.0
"""A silent worker is dead after so long; above three heartbeats."""
LOOKUP_SECONDS = 30.0
"""A silent scheduler's lookups end after this.  What has to be released at once is so before that (`RELEASE_SECONDS`)."""


class BusySite(Site):
    """As its base; `engine` and whatever `new_engine` makes serve several clients at once."""

    engine: ConcurrentEngine

    def __init__(self, folder: Path) -> None:
        options = ["--l1-size-gb", L1_GIB, "--worker-reap-timeout-seconds", str(REAP_SECONDS)]
        options += ["--l1-read-ttl-seconds", str(LOOKUP_SECONDS), "--log-level", "DEBUG"]
        self._log_read = 0
        super().__init__(CHUNK_TOKENS, folder, options)

    def new_engine(self, name: str) -> ConcurrentEngine:
        extra = {
            "lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS,
            "lmcache.mp.mq_timeout": RPC_SECONDS,
            "lmcache.mp.eager_prefetch": True,  # queued requests hold what they have found
        }
        return ConcurrentEngine(self.folder / f"{name}.log", port=self.server.port, extra=extra)

    def crash_server_between_requests(self) -> None:
        """As `crash_server`, but while the engine is frozen and the server has answered all that it was asked: stores
        and loads of L2 are cut off, leases and transfers too, and no answer is lost, which a stock engine need not
        survive (`stock_limits.py`)."""
        self.engine.pause()
        try:
            answered = -1
            while answered != (answered := self.server.status()["requests"]["requests"]):
                time.sleep(IDLE_SECONDS)
            self.crash_server()
        finally:
            self.engine.resume()

    def replace_engine(self) -> str:
        """The engine is dead: start another one for the same clients.  Returns why; fails when a server could be to
        blame."""
        log = self.engine.log
        reason = known_end(log[self._log_read :])
        self._log_read = len(log)
        assert reason, f"the engine died of something new, see {self.folder}"
        self.engine.kill()
        self.engine.start()
        return reason
