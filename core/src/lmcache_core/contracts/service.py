"""Services: what runs in the server beside the request path, such as an HTTP API, or programs that the server looks after."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from lmcache_core.contracts.conditions import ReportsConditions
from lmcache_core.contracts.http_route import PluginRoute, RouteCheck
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.contracts.server_view import ServerInfo, ServerView
from lmcache_core.contracts.storage import Storage
from lmcache_core.contracts.transfer_channel import TransferChannel

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class ServiceContext(Protocol):
    """What the server gives a service when it opens it.  Safe from any thread."""

    @property
    def server(self) -> ServerView:
        """The running server.  Raises RuntimeError while services are opened, when there is no server yet."""

    @property
    def control(self) -> ServerControl:
        """What an operator may do to the server.  Not to be used before `Service.start`."""

    @property
    def feeds(self) -> Sequence[ResidencyFeed]:
        """What the tiers have, L1 first.  Adapters come and go: look again now and then."""

    @property
    def modules(self) -> Mapping[str, RequestModule]:
        """The request modules that answer, by name: a plugin's service has the metrics of its module."""

    @property
    def storage(self) -> Storage:
        """L1 and what is behind it.  Not to be used before `Service.start`."""

    @property
    def region(self) -> MemoryRegion:
        """L1's memory, valid until `Service.close` has returned."""

    @property
    def transfer_channels(self) -> Sequence[str]:
        """Names of the transfer channels that plugins offer, sorted."""

    def open_transfer_channel(self, name: str, host: str) -> TransferChannel:
        """For L1's memory; the caller closes it.  `host`: the address at which other machines reach this one.  Raises
        LMCacheError where it cannot be used here."""

    def http_routes(self, check: RouteCheck) -> Sequence[PluginRoute]:
        """The routes that plugins offer, opened and checked, for a service that answers them."""

    def configuration(self) -> Mapping[str, Any]:
        """Every setting by name, as JSON values.  Secrets are masked."""

    def value_at(self, place: str) -> Any:
        """The value of one setting, or of a part of one, at a place such as `l2_adapter.0.secret_access_key`.  Secrets are
        **not** masked.  None where there is nothing."""

    def environment(self) -> dict[str, str]:
        """The server's environment variables, without its settings and without those whose names sound like a secret.
        Passwords in URLs are masked."""

    def masking(self, secrets: Collection[str] = ()) -> Callable[[str], str]:
        """A function that masks every secret of the configuration in a text, and `secrets` as well."""


class Service(ReportsConditions, ABC):
    """Opened once the engine port is bound, started when the port answers, and closed before the port is.

    The server calls `start`, `stop` and `close` on its main thread, each of them once; `status` and `conditions` on any
    thread, before `start` and after `close` too."""

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Addresses that the service has bound, by a name such as `http`.  Read once, after it was opened; all parts find
        them in `ServerInfo.endpoints`."""
        return _NONE

    def threads(self) -> Mapping[str, Callable[[], None]]:
        """Bodies of the threads that the service needs, by name.  Read once, after `start`.  The server runs and supervises
        them like its own: one that raises is logged, counted and called again on the same thread, and the server is
        unhealthy meanwhile.  Each returns after `close`, or earlier when its work is done."""
        return _NONE

    def start(self, server: ServerInfo) -> None:
        """The engine port answers.  Must return quickly.  An error stops the start if the configuration asks for the
        service; otherwise the server runs without it."""

    def stop(self, seconds: float) -> None:
        """The server is about to drain for up to `seconds`; 0: it does not wait for anything.  Must return at once.
        A service whose end takes time begins to end now; one that is useful during the drain goes on until `close`."""

    @abstractmethod
    def close(self) -> None:
        """End, and give everything back.  The last opened service is closed first; the engine port and services that were
        opened earlier still answer.  Bounded by the service itself.  Also called, without `start`, when the server cannot
        be built."""

    def status(self) -> Mapping[str, Any]:
        """JSON values for `/status`.  Must not block."""
        return _NONE

    @property
    def sample_kinds(self) -> Sequence[SampleKind]:
        """Its own metrics, the same for its life."""
        return ()

    def samples(self) -> Sequence[Sample]:
        """Their values, of now, on any thread.  Must not block."""
        return ()
