"""`lmcache ping`"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.client.client import EngineClient
from lmcache_core.model.errors import ConfigError, LMCacheError


def run(arguments: Sequence[str]) -> ExitCode:
    """Exit code 0 when the engine port answers in time, 1 when not."""
    parser = Parser("lmcache ping", "Ask a server's engine port whether it answers.")
    parser.add_argument("--host", default="localhost", help="where the server is (default: localhost)")
    parser.add_argument("--port", default=5555, type=int, help="its engine port (default: 5555)")
    parser.add_argument("--timeout-seconds", default=5.0, type=float, help="how long to wait (default: 5)")
    given = parser.parse_all(arguments)
    if not (0 < given.port < 65536 and 0 < given.timeout_seconds < float("inf")):
        raise ConfigError("--port must be 1 to 65535, and --timeout-seconds more than 0")
    host = f"[{given.host}]" if ":" in given.host else given.host
    before = time.monotonic()
    with EngineClient(f"tcp://{host}:{given.port}", given.timeout_seconds) as client:
        if not client.ping():
            raise LMCacheError(f"tcp://{host}:{given.port} answers, but says that it is not well")
    print(f"tcp://{host}:{given.port} answers after {(time.monotonic() - before) * 1000:.1f} ms")
    return ExitCode.STOPPED
