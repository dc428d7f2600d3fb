"""One cache server with a disk behind it, and one engine that uses it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from demo.engine_process import EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from demo.server_process import ServerProcess

CHUNK_TOKENS = 256
"""Of sites that no test asks for another size of."""
HEARTBEAT_SECONDS = 4.0
"""Also how long an engine waits for the answer to one: shorter, and a busy machine looks like a dead server."""
SPINNING_WORKERS = {
    "lmcache.heartbeat_seconds": 60.0,
    "lmcache.lookup_timeout_ms": 60_000,
    "lmcache.prefetch_timeout_seconds": 60.0,
    "lmcache.timeout_seconds": 60.0,
}
"""Settings of our connector in an engine of several workers.  They spin while they wait for each other; on two cores with
other work the kernel leaves everything else without a turn meanwhile.  A process that sleeps for 10 ms was seen to sleep for
5.5 s, and a server that has an answer in a millisecond to be silent for 9 s."""
RECONNECT_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long an engine may take to find a server that was replaced, by its own heartbeats."""
ALLOWANCE_SECONDS = 15.0
"""For computing, and for a machine that does other things too; far below the 300 s that an engine waits for an answer."""
STORE_SECONDS = 60.0
"""For a few hundred megabytes to reach a disk."""
RELEASE_SECONDS = 15.0
"""For stores that are on their way to L2, and for what the engine's last messages release."""
ROOMY = ("--l1-size-gb", "1")


class Site:
    """Server, L2 folder and engine of one chunk size.  Starts everything when made; `close` leaves nothing."""

    def __init__(self, chunk_tokens: int, folder: Path, options: Sequence[str] = ROOMY) -> None:
        self.chunk_tokens = chunk_tokens
        self.folder = folder
        self.l2 = L2Folder(folder / "l2")
        self.l2.path.mkdir()
        options = ["--chunk-size", str(chunk_tokens), *self.l2.adapter_option(), *options]
        self.server = ServerProcess(options, folder / "server.log")
        self.engine = self.new_engine("engine")
        self._probes = 0
        try:
            self.server.start()
            self.engine.start()
        except BaseException:
            self.close()
            raise

    def new_engine(self, name: str) -> EngineProcess:
        """Another engine for the same server, not started yet.  The caller ends it."""
        heartbeat = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS}
        return EngineProcess(self.folder / f"{name}.log", port=self.server.port, extra=heartbeat)

    def wait_stored(self, objects: int) -> None:
        """Block until at least that number of objects is on disk and nothing is on its way there; raises if that never is."""
        self.l2.wait_for_objects(objects, STORE_SECONDS)
        self.server.wait_written(STORE_SECONDS)

    def wait_nothing_held(self, timeout_seconds: float = RELEASE_SECONDS) -> None:
        """Block until no lookup is open and L1 holds nothing for anybody; TimeoutError, which says what is held, if that
        never is."""
        deadline = time.monotonic() + timeout_seconds
        while any((held := self.held()).values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout_seconds:.0f} s the server still holds {held}")
            time.sleep(0.05)

    def held(self) -> dict[str, int]:
        """What an idle server has none of."""
        status = self.server.status()
        assert status["l1"]["state_counts_add_up"], f"slots do not add up: {status['l1']}"
        return {name: status["l1"][name] for name in ("held", "quarantined", "leases")} | {
            "lookups_open": status["lookups_open"],
            **{name: status["modules"]["engine_driven"][name] for name in ("stores_prepared", "reads_prepared")},
        }

    def crash_server(self) -> None:
        """Kill the server and start it again; the engine is not notified."""
        self.server.kill()
        self.server.start()

    def restart_server(self) -> None:
        """Stop the server in an orderly way and start it again; the engine is not notified."""
        self.server.stop()
        self.server.start()

    def wait_reconnected(self) -> None:
        """Block until the engine uses the server again; ChildError when it takes longer than it may."""
        self._probes += 1
        probe = random_prompt(10_000 + self._probes, self.chunk_tokens + 1)
        self.engine.ask_until_cached(probe, timeout_seconds=RECONNECT_SECONDS + ALLOWANCE_SECONDS)

    def close(self) -> None:
        """The server goes in an orderly way, so that it takes its shared memory along."""
        self.engine.kill()
        if self.server.running:
            self.server.stop()


class OwnSite(Site):
    """Its engine has our connector, and is one process."""

    def new_engine(self, name: str) -> EngineProcess:
        # A lookup that waits for L2 is abandoned after half a second otherwise, and other tests may have the processor.
        extra = {"lmcache.heartbeat_seconds": HEARTBEAT_SECONDS, "lmcache.lookup_timeout_ms": 5_000}
        log_path = self.folder / f"{name}.log"
        return EngineProcess(log_path, port=self.server.port, connector="own", extra=extra, one_process=True)


class DrivenSite(Site):
    """Its engine registers its pages and sends block ids, and is one process."""

    def new_engine(self, name: str) -> EngineProcess:
        extra = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS, "lmcache.mp.mp_transfer_mode": "lmcache_driven"}
        return EngineProcess(self.folder / f"{name}.log", port=self.server.port, extra=extra, one_process=True)
