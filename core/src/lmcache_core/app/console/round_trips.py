"""How long a server takes to answer next to nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from lmcache_client.client import EngineClient
from lmcache_client.errors import LMCacheError
from lmcache_core.app.console.admin_client import AdminClient
from lmcache_core.app.console.engine_http import EngineHttp
from lmcache_core.app.console.loose_json import Loose

_UNHEALTHY: Final = (503,)
_ANY_HOST: Final = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """`seconds` of each question that was answered; `fault` says why it is not well, or is empty."""

    what: str
    address: str
    seconds: tuple[float, ...]
    fault: str = ""
    engine_endpoint: str | None = None
    """Where engines connect, as far as the server says."""

    def spread(self) -> tuple[float, float, float]:
        """Fastest, median and slowest, in seconds."""
        return min(self.seconds), statistics.median(self.seconds), max(self.seconds)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        names = ("fastest_ms", "median_ms", "slowest_ms")
        times = dict(zip(names, self.spread(), strict=True)) if self.seconds else {}
        return {
            "what": self.what,
            "address": self.address,
            "healthy": not self.fault,
            "answers": len(self.seconds),
            **{name: round(times[name] * 1000, 3) if name in times else None for name in names},
            "fault": self.fault or None,
        }


def engine_port_trips(endpoint: str, count: int, timeout_seconds: float) -> RoundTrips:
    """Over one ZMQ connection, which the first question opens."""
    with EngineClient(endpoint, timeout_seconds) as client:

        def ping() -> str:
            return "" if client.ping() else f"{endpoint} answers, but says that it is not well"

        return _measured("engine port", endpoint, count, ping)


def admin_trips(client: AdminClient, count: int) -> RoundTrips:
    """Over HTTP, with a connection for each question."""

    def healthcheck() -> str:
        answer = Loose(client.ask("GET", "/healthcheck", also=_UNHEALTHY))
        return "" if (answer / "status").text() == "healthy" else f"{client.url}: {(answer / 'reason').text()}"

    done = _measured("admin API", client.url, count, healthcheck)
    if not done.seconds:
        return done
    try:
        endpoint = (Loose(client.ask("GET", "/status")) / "server" / "engine_endpoint").text()
    except LMCacheError as error:  # a token may be asked for
        return RoundTrips(done.what, done.address, done.seconds, done.fault or str(error))
    return RoundTrips(done.what, done.address, done.seconds, done.fault, _reachable(endpoint, client.url))


def engine_trips(url: str, count: int, timeout_seconds: float) -> RoundTrips:
    """An inference engine's health route."""
    engine = EngineHttp(url, timeout_seconds)

    def health() -> str:
        engine.health()
        return ""

    return _measured("engine", engine.url, count, health)


def _measured(what: str, address: str, count: int, ask: Callable[[], str]) -> RoundTrips:
    seconds: list[float] = []
    fault = ""
    for _ in range(count):
        begun = time.perf_counter()
        try:
            fault = ask() or fault
        except LMCacheError as error:
            return RoundTrips(what, address, tuple(seconds), str(error))
        seconds.append(time.perf_counter() - begun)
    return RoundTrips(what, address, tuple(seconds), fault)


def _reachable(endpoint: str, url: str) -> str | None:
    """The engine port from here: one that is bound to every address is at the one that the admin API was found at."""
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        return endpoint
    if parts.scheme != "tcp" or not parts.port:
        return None
    host = urlsplit(url).hostname if parts.hostname in _ANY_HOST else parts.hostname
    return f"tcp://[{host}]:{parts.port}" if ":" in (host or "") else f"tcp://{host}:{parts.port}"
