"""Opens subscribers and asks what they subscribe to.  One that cannot be opened stops the start only if it was asked for
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.subscriber import Subscriber, Subscriptions


class AskedSubscriber(Subscriber):
    """A subscriber whose subscriptions are known: the contract says that they are asked for once."""

    def __init__(self, subscriber: Subscriber, subscriptions: Subscriptions) -> None:
        self._subscriber = subscriber
        self._subscriptions = subscriptions

    @property
    def own(self) -> Subscriber:
        """What the plugin opened."""
        return self._subscriber

    def subscriptions(self) -> Subscriptions:
        return self._subscriptions

    def begin(self, server: ServerView) -> None:
        self._subscriber.begin(server)

    def batch_done(self) -> None:
        self._subscriber.batch_done()

    def close(self) -> None:
        self._subscriber.close()


def open_subscribers(specs: Sequence[OfferSpec], plugins: LoadedPlugins) -> Mapping[str, AskedSubscriber]:
    """By name, those that can be had.  Raises LMCacheError for one that is needed and cannot."""
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
