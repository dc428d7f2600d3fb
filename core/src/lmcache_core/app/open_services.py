"""Opens, starts and closes the services of plugins, and what they may do to the server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.app.adapter_changes import AdapterChanges
from lmcache_core.app.commands.plugins_list import record
from lmcache_core.app.common_parts import CommonParts
from lmcache_core.app.masking import Hidden, masked_text, sounds_secret
from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.open_http_routes import RoutesContext, open_http_routes
from lmcache_core.app.open_tiers import Tiers
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_fault import close_logged, describe, status_of
from lmcache_core.app.setting_changes import SettingChanges
from lmcache_core.app.shown_settings import shown_settings
from lmcache_core.contracts.http_route import PluginRoute, RouteCheck
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.contracts.samples import Sample, SampleKind
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.contracts.server_view import ServerInfo, ServerView
from lmcache_core.contracts.service import Service
from lmcache_core.contracts.storage import Storage
from lmcache_core.contracts.transfer_channel import ChannelContext, TransferChannel
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_core.model.errors import PluginError, PluginLoadError
from lmcache_core.server.chunk_addresses import ChunkAddresses
from lmcache_core.storage.cache_control import OperatorCache

logger = logging.getLogger(__name__)

_SETTINGS_PREFIX = "LMCACHE_"


class ContextOfServices(msgspec.Struct, frozen=True):
    """The `ServiceContext` of a server."""

    common: CommonParts
    control: ServerControl
    all_feeds: Callable[[], Sequence[ResidencyFeed]]
    running: Callable[[], ServerView | None]
    modules: Mapping[str, RequestModule]
    storage: Storage
    region: MemoryRegion
    opened: Callable[[], Mapping[str, Service]]
    """Services by name."""

    @property
    def transfer_channels(self) -> Sequence[str]:
        return [spec.name for spec in self.common.offers.transfer_channels]

    def open_transfer_channel(self, name: str, host: str) -> TransferChannel:
        spec = next((each for each in self.common.offers.transfer_channels if each.name == name), None)
        if spec is None:
            raise ConfigError(f"no plugin offers a transfer channel '{name}'")
        logger = logging.getLogger(f"lmcache.transfer.{name}")
        context = ChannelContext(self.region, host, self.common.boot_id, self.common.clock, logger)
        channel: TransferChannel = spec.open_as(TransferChannel, self.common.plugins, context)
        return channel

    @property
    def server(self) -> ServerView:
        server = self.running()
        if server is None:
            raise RuntimeError(
                "context.server was read while services are opened; read it in start() or in a route's answer"
            )
        return server

    @property
    def feeds(self) -> Sequence[ResidencyFeed]:
        return self.all_feeds()

    def http_routes(self, check: RouteCheck) -> list[PluginRoute]:
        common = self.common
        subscribers = {name: asked.subscriber for name, asked in common.subscribers.items()}
        context = RoutesContext(lambda: self.server, subscribers, self.opened)
        return open_http_routes(common.offers.http_routes, common.plugins, context, check)

    def configuration(self) -> Mapping[str, Any]:
        return {row.name: row.value for row in shown_settings(self.common.settings, self.common.plugins)}

    def value_at(self, place: str) -> Any:
        first, *steps = place.split(".")
        added = [each.values for each in self.common.settings.added if first in type(each.values).model_fields]
        value = _inside(added[0] if added else self.common.settings, first)
        for step in steps:
            value = _inside(value, step)
        return value.get_secret_value() if isinstance(value, SecretStr | SecretBytes) else value

    def environment(self) -> dict[str, str]:
        return {
            name: masked_text(value)
            for name, value in os.environ.items()
            if not name.startswith(_SETTINGS_PREFIX) and not sounds_secret(name)
        }

    def masking(self, secrets: Collection[str] = ()) -> Callable[[str], str]:
        more, known = Hidden(secrets), self.common.hidden
        return lambda text: more.text(known.text(text))


class Services:
    """Those of a server, in the order in which they were opened.  `status` and `opened` may be called by any thread."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._plugins = plugins
        self._opened: list[tuple[OfferSpec, Service]] = []
        self.endpoints: dict[str, str] = {}
        """Addresses that services have bound, by name."""

    def open(self, specs: Sequence[OfferSpec], context: ContextOfServices) -> None:
        """Those that open.  Raises LMCacheError for one that is needed and cannot, and for one whose settings or
        resources are at fault; `close` closes the others.  A broken plugin that was not asked for is set aside."""
        for spec in specs:
            try:
                service = spec.open_as(Service, self._plugins, context)
                self._opened.append((spec, service))
                self._add_endpoints(spec, service)
            except LMCacheError as error:
                if spec.needed or not self._is_fault_of_its_plugin(spec, error):
                    raise
                self._set_aside(spec, error)

    def _is_fault_of_its_plugin(self, spec: OfferSpec, error: LMCacheError) -> bool:
        return isinstance(error, PluginError) and error.plugin == self._plugins.owner(spec.kind, spec.name).name

    def _add_endpoints(self, spec: OfferSpec, service: Service) -> None:
        try:
            endpoints = {str(name): str(address) for name, address in service.endpoints.items()}
        except (Exception, SystemExit) as error:
            raise spec.fault(self._plugins, f": endpoints failed: {describe(error)}") from error
        if taken := self.endpoints.keys() & endpoints.keys():
            raise spec.fault(self._plugins, f": another service has an endpoint '{min(taken)}' already")
        self.endpoints.update(endpoints)

    def start(self, info: ServerInfo, supervisor: Supervisor) -> None:
        """Raises PluginLoadError for one that is needed and does not start; the others are set aside."""
        for spec, service in tuple(self._opened):
            try:
                service.start(info)
                threads = dict(service.threads())
            except (Exception, SystemExit) as error:
                owner = self._plugins.owner(spec.kind, spec.name)
                reason = f"service '{spec.name}' ({owner.owner}) does not start: {describe(error)}"
                failed = PluginLoadError(owner.name, reason)
                if spec.needed:
                    raise failed from error
                self._set_aside(spec, failed)
                continue
            for name, run in threads.items():
                supervisor.start(f"{spec.name}-{name}", run)

    def stop(self, seconds: float) -> None:
        """The server begins to stop."""
        for spec, service in reversed(self._opened):
            try:
                service.stop(seconds)
            except (Exception, SystemExit):  # a plugin's boundary
                logger.exception("service failed to stop name=%s", spec.name)

    def close(self) -> None:
        """The last opened first."""
        for spec, service in reversed(self._opened):
            close_logged(f"service={spec.name}", service.close)

    def _set_aside(self, spec: OfferSpec, error: LMCacheError) -> None:
        for opened in [each for each in self._opened if each[0] is spec]:
            self._opened.remove(opened)
            close_logged(f"service={spec.name}", opened[1].close)
        self._plugins.set_aside(spec.kind, spec.name, error)

    def opened(self) -> Mapping[str, Service]:
        """By name."""
        return {spec.name: service for spec, service in self._opened}

    def sample_kinds(self) -> list[SampleKind]:
        return [kind for _, service in self._opened for kind in service.sample_kinds]

    def samples(self) -> list[Sample]:
        """Those of a service that fails are left out."""
        found: list[Sample] = []
        for spec, service in self._opened:
            try:
                known = {kind.name for kind in service.sample_kinds}
                found += [sample for sample in service.samples() if sample.name in known]
            except (Exception, SystemExit):  # a plugin's boundary
                logger.debug("samples() failed service=%s", spec.name, exc_info=True)
        return found

    def status(self) -> dict[str, Any]:
        """By name."""
        return {name: status_of(f"service={name}", service.status) for name, service in self.opened().items()}


def open_control(
    common: CommonParts, tiers: Tiers, addresses: ChunkAddresses, adapters: AdapterChanges, settings: SettingChanges
) -> ServerControl:
    hidden = common.hidden
    return ServerControl(
        quotas=tiers.quotas,
        cache=OperatorCache(tiers.cache, tiers.storage, tiers.prefetch, common.clock),
        resolve=addresses.resolve,
        freeze=tiers.storage.freeze,
        adapters=adapters,
        settings=settings,
        plugins=lambda: plugin_rows(common.plugins),
        events=common.bus,
        native=common.kernels.native,
        hide=hidden.data,
        hide_also=hidden.learn,
    )


def plugin_rows(plugins: LoadedPlugins) -> list[Mapping[str, Any]]:
    """As in `lmcache plugins list`, with hooks and without tracebacks, which may quote secrets."""
    rows: list[Mapping[str, Any]] = []
    for row in plugins.rows():
        about = record(row)
        del about["traceback"]
        rows.append({**about, "hooks": plugins.hooks_of(row.candidate.name)})
    return rows


def open_services(
    common: CommonParts,
    control: ServerControl,
    running: Callable[[], ServerView | None],
    modules: Mapping[str, RequestModule],
    tiers: Tiers,
) -> Services:
    """`common.undo` closes them.  Raises LMCacheError."""
    services = Services(common.plugins)
    common.undo.callback(services.close)
    services.open(
        common.offers.services,
        ContextOfServices(
            common, control, tiers.feeds, running, modules, tiers.storage, tiers.arena.region, services.opened
        ),
    )
    return services


def _inside(value: Any, step: str) -> Any:
    match value:
        case Mapping():
            return value.get(step)
        case BaseModel() if step in type(value).model_fields:
            return getattr(value, step)
        case str():
            return None
        case Sequence() if step.isdecimal() and int(step) < len(value):
            return value[int(step)]
        case _:
            return None
