"""What all parts of a server are given when they are made, the opened subscribers among them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec

from lmcache_core.app.adapter_specs import AdapterSpec, adapter_specs
from lmcache_core.app.masking import Hidden
from lmcache_core.app.offer_specs import OfferSpec, OfferSpecs, offer_specs
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.clock import Clock, SystemClock
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions
from lmcache_core.controllers.conditions import Conditions
from lmcache_core.events.bus import EventBus
from lmcache_core.events.subscriber_calls import AskedSubscriber
from lmcache_core.events.subscriber_queue import QueueLimits
from lmcache_core.kernels.choice import Kernels, choose_kernels

SUBSCRIBERS_CLOSE_SECONDS: Final = 2.0
"""How long subscribers may take to close where the server cannot be built."""


class CommonParts(msgspec.Struct, frozen=True):
    """What all parts are given."""

    settings: ServerSettings
    plugins: LoadedPlugins
    offers: OfferSpecs
    l2: tuple[AdapterSpec, ...]
    """The adapters to begin with."""
    kernels: Kernels
    hidden: Hidden
    """Gets every secret, before anything can log it."""
    instance_id: str
    """As it was configured, or another one for each start."""
    boot_id: str
    """Another one for each start."""
    clock: Clock
    subscribers: Mapping[str, AskedSubscriber]
    """Those of the bus, by name."""
    bus: EventBus
    conditions: Conditions
    undo: ExitStack
    """Gives back what was opened, where the server cannot be built."""


def open_common(settings: ServerSettings, plugins: LoadedPlugins, hidden: Hidden, undo: ExitStack) -> CommonParts:
    """Checks everything that the server is to be made of, and then opens the subscribers, which `undo` closes.  Raises
    LMCacheError."""
    # safe mode imports nothing but core, unless asked to
    kernels = choose_kernels("off" if settings.safe_mode and settings.native == "auto" else settings.native)
    offers = offer_specs(settings, plugins)
    l2 = adapter_specs(settings.l2_adapter, plugins, offers.l2_adapters)
    clock = SystemClock()
    subscribers = open_subscribers(offers.subscribers, plugins)
    seconds, cpu_ratio = settings.event_subscriber_timeout_seconds, settings.event_subscriber_cpu_ratio
    bus = EventBus(subscribers, QueueLimits(settings.event_bus_queue_size, seconds, cpu_ratio))
    undo.callback(bus.close, SUBSCRIBERS_CLOSE_SECONDS)
    return CommonParts(
        settings=settings,
        plugins=plugins,
        offers=offers,
        l2=l2,
        kernels=kernels,
        hidden=hidden,
        instance_id=settings.instance_id or str(uuid.uuid4()),
        boot_id=uuid.uuid4().hex,
        clock=clock,
        subscribers=subscribers,
        bus=bus,
        conditions=Conditions(clock),
        undo=undo,
    )


def open_subscribers(specs: Sequence[OfferSpec], plugins: LoadedPlugins) -> Mapping[str, AskedSubscriber]:
    """By name, those that open, with what they subscribe to.  Raises LMCacheError for one that is needed and cannot."""
    opened: dict[str, AskedSubscriber] = {}
    for spec in specs:
        with spec.dispensable(plugins):
            subscriber = spec.open_as(Subscriber, plugins)
            opened[spec.name] = AskedSubscriber(subscriber, _subscriptions(subscriber, spec, plugins))
    return opened


def _subscriptions(subscriber: Subscriber, spec: OfferSpec, plugins: LoadedPlugins) -> Subscriptions:
    try:
        subscriptions = dict(subscriber.subscriptions())
    except (Exception, SystemExit) as error:
        raise spec.fault(plugins, f": subscriptions() failed: {describe(error)}") from error
    for kind, callback in subscriptions.items():
        if not (isinstance(kind, type) and issubclass(kind, Event) and callable(callback)):
            raise spec.fault(
                plugins, f": subscriptions() maps {kind!r} to {callback!r}, not an event type to a function"
            )
    return subscriptions
