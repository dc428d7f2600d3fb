"""The cache inside of a process that is not a server: all of one but the port and the programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmcache_client.errors import ConfigError, LMCacheError, ResourceError
from lmcache_core.app.build import build
from lmcache_core.app.configuration import settings_of
from lmcache_core.app.console.command_line import first_names
from lmcache_core.app.open_engine_port import open_port
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.contracts.conditions import ServerState, server_state
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.request_module import ChunkHasher
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.contracts.server_counts import ServerCounts
from lmcache_core.contracts.storage import Storage


def open_local(settings: Mapping[str, Any]) -> LocalCache:
    """Open a cache for this process, by the settings of `lmcache server`; those of port, log and programs have no effect.

    Only the plugins that `plugins` names are loaded beside core's own; their services run.  No `LMCACHE_*` variable is a
    setting.  L1 is anonymous memory unless `l1_shared_memory` is true.  Signals, logging, the switch interval and the garbage
    collector stay as they are.  Raises LMCacheError, with everything given back, where something is wrong."""
    named = first_names(None, (), settings.get("plugins"))
    plugins = load_plugins(named, safe_mode=not named)
    server = build(settings_of({"l1_shared_memory": False, **settings}, plugins), plugins, is_served=False)
    try:
        server.start()
    except BaseException:  # an interrupt, too: the process may go on
        server.stop(0.0)
        raise
    return LocalCache(server)


class LocalCache:
    """Safe from any thread of the process that opened it.  Raises LMCacheError in the child after a fork, and after `close`."""

    def __init__(self, server: Server) -> None:
        self._running, self._process, self._is_closed = server, os.getpid(), False
        self._serving = threading.Lock()

    @property
    def _server(self) -> Server:
        self._check_process()
        if self._is_closed:
            raise LMCacheError("this cache is closed; open another one")
        return self._running

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise LMCacheError("this cache was opened before a fork; the child opens one of its own")

    @property
    def storage(self) -> Storage:
        return self._server.parts.tiers.storage

    @property
    def hasher(self) -> ChunkHasher:
        return self._server.parts.engine_port.hasher

    @property
    def region(self) -> MemoryRegion:
        """L1's memory."""
        return self._server.parts.tiers.arena.region

    @property
    def control(self) -> ServerControl:
        """As a service's: settings, quotas, adapters, and what is in L1."""
        return self._server.parts.control

    @property
    def healthy(self) -> bool:
        return server_state(self._server.conditions()) is not ServerState.UNHEALTHY

    def status(self) -> dict[str, Any]:
        """As of a server."""
        return self._server.status()

    def counts(self) -> ServerCounts:
        """What metrics are made of, as of now."""
        return self._server.counts()

    def freeze(self, is_frozen: bool) -> None:
        """While frozen, stores are refused, and lookups see L1 only."""
        freeze = self._server.parts.tiers.storage.freeze
        freeze.begin(None) if is_frozen else freeze.end()

    def serve(self, endpoint: str, workers: int = 1) -> str:
        """Answer other processes of this engine, once: at ipc:///path, in a folder that is or becomes this user's alone, or at
        tcp://127.0.0.1:0.  They map L1 where `l1_shared_memory` is true; its name goes when `workers` have registered and had
        time to.  Returns the endpoint.  Raises LMCacheError."""
        parts = self._server.parts
        port = parts.engine_port
        with self._serving, ExitStack() as undo:
            if port.endpoint:
                raise ConfigError(f"this cache is served at {port.endpoint} already")
            _check_private(endpoint)
            open_port(parts.common, port, endpoint.removeprefix("tcp://").removesuffix(":0"), 0, undo)
            undo.pop_all()  # `close` gives it back
        parts.info = replace(parts.info, engine_endpoint=port.endpoint)
        for name, run in port.threads():
            parts.supervisor.start(name, run)
        port.reaper.add(lambda: parts.tiers.arena.unname() if port.workers.settled() >= workers else None)
        return port.endpoint

    def close(self, drain_seconds: float = 10.0) -> bool:
        """Refuse new stores, write pending ones to L2 within `drain_seconds`, and release memory and threads.  The caller ends
        its own reads and writes of L1 first.  Returns False when an object did not reach L2.  A second call finishes
        what was interrupted."""
        self._check_process()
        self._is_closed = True
        return self._running.stop(drain_seconds)


def _check_private(endpoint: str) -> None:
    """No other user and no other machine reaches it.  Makes the folder of a socket."""
    if endpoint == "tcp://127.0.0.1:0":
        return
    if not endpoint.startswith("ipc:///"):
        raise ConfigError(f"cannot be served at {endpoint}: expected ipc:///path, or tcp://127.0.0.1:0")
    folder = Path(endpoint.removeprefix("ipc://")).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found, link = folder.stat(), folder.lstat()
    except OSError as error:
        raise ResourceError(f"{folder} cannot be made for a socket: {error.strerror}") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or link.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"others may enter {folder}: name a folder that is this user's alone (mode 0700)")
