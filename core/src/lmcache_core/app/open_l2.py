"""Opens L2 adapters, with the eviction of those that have one.  An adapter is checked before a controller uses it, so that its
faults are reported at the start, by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from lmcache_core.app.adapter_specs import AdapterSpec, L2EvictionSpec
from lmcache_core.app.commands.plugins_list import capability_words
from lmcache_core.app.l2_tier import ADAPTER_CLOSE_SECONDS, RunningAdapter, RunningEviction
from lmcache_core.app.masking import Hidden, secrets_in
from lmcache_core.app.offer_specs import OfferSpec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.plugins.plugin_fault import describe
from lmcache_core.app.serdes import KnownLayouts, open_behind_serdes
from lmcache_core.builtin.lru import LeastRecentlyUsed
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import Publisher
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter
from lmcache_core.contracts.l2_eviction import L2Eviction, L2EvictionContext
from lmcache_core.contracts.policies import EvictionPolicy
from lmcache_core.contracts.serde import SerdeLayouts
from lmcache_core.contracts.settings import PluginSettings
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.adapter_feed import AdapterFeed
from lmcache_core.controllers.policy_guard import GuardedPolicy
from lmcache_core.kernels.choice import Kernels
from lmcache_core.model.errors import PluginContractError

logger = logging.getLogger(__name__)


def open_eviction_policy(spec: OfferSpec, plugins: LoadedPlugins, kernels: Kernels) -> EvictionPolicy:
    """The policy, which has got the kernels.  Raises what the policy raises when it is opened."""
    policy: EvictionPolicy = spec.open_as(EvictionPolicy, plugins)
    try:
        policy.use_kernels(kernels)
    except Exception:  # a plugin boundary: it works without the kernels
        logger.exception("eviction policy failed to take the kernels, and goes on without name=%s", spec.name)
    return policy


def open_l2_eviction(
    spec: L2EvictionSpec,
    client: AdapterClient,
    plugins: LoadedPlugins,
    clock: Clock,
    events: Publisher,
    kernels: Kernels,
) -> RunningEviction:
    """Raises LMCacheError, for an adapter whose objects cannot be evicted among others."""
    policy = open_eviction_policy(spec.policy, plugins, kernels)
    guarded = GuardedPolicy(
        f"eviction policy of adapter {client.name}", policy, clock, lambda: LeastRecentlyUsed(kernels)
    )
    context = L2EvictionContext(client, guarded, clock, events)
    eviction: L2Eviction = spec.eviction.open_as(L2Eviction, plugins, context)
    client.watch(eviction)
    return RunningEviction(client.name, spec.policy.name, guarded, eviction)


def open_spec(spec: AdapterSpec, plugins: LoadedPlugins, context: AdapterContext, layouts: SerdeLayouts) -> L2Adapter:
    """The adapter that `--l2-adapter` asks for, behind its serdes where it has any.  The caller closes it.  Raises
    LMCacheError, with nothing left open."""

    def inner(context: AdapterContext) -> L2Adapter:
        return open_adapter(spec.offer.name, spec.settings, plugins, context)

    if spec.serdes is None:
        return inner(context)
    return open_behind_serdes(spec.serdes, plugins, context, layouts, inner)


def open_adapter(
    name: str, settings: PluginSettings | None, plugins: LoadedPlugins, context: AdapterContext
) -> L2Adapter:
    """The offer of this name, opened: the caller closes it.  Raises LMCacheError, with nothing left open as far as the
    adapter lets that be done.  Warns where it can do something else than its offer says."""
    adapter: L2Adapter = OfferSpec(OfferKind.L2_ADAPTER, name, settings).open_as(L2Adapter, plugins, context)
    owner = plugins.owner(OfferKind.L2_ADAPTER, name)
    if fault := _fault(adapter):
        try:
            adapter.close(0.0)
        except Exception:  # what is half made cannot always be closed
            logger.debug("l2 adapter failed to close adapter=%s", context.name, exc_info=True)
        raise PluginContractError(owner.name, f"L2 adapter '{name}' ({owner.owner}): {fault}")
    offer = plugins.offer(OfferKind.L2_ADAPTER, name)
    if not offer.allows(adapter.capabilities):
        logger.warning(
            "l2 adapter has other capabilities than its offer says, and its own count adapter=%s offer=[%s] adapter's=[%s]",
            context.name,
            capability_words(offer.capabilities),
            capability_words(adapter.capabilities),
        )
    return adapter


def _fault(adapter: L2Adapter) -> str | None:
    """Why its completions cannot be polled; None where they can."""
    try:
        descriptor = adapter.completions().fileno()
    except Exception as error:  # noqa: BLE001 - a plugin's boundary
        return f"completions().fileno() failed: {describe(error)}"
    if not isinstance(descriptor, int) or descriptor < 0:
        return f"completions().fileno() is {descriptor!r}, which is not a file descriptor"
    return None


class AdapterOpener(msgspec.Struct, frozen=True):
    """Opens adapters of this server, each with a context of its own made from `context`.  Any thread."""

    plugins: LoadedPlugins
    context: AdapterContext
    kernels: Kernels
    hidden: Hidden
    """Gets the secrets of each adapter before anything can log them."""
    layouts: KnownLayouts

    def open(self, spec: AdapterSpec, index: int, timeout_seconds: float) -> RunningAdapter:
        """The caller closes it.  Raises LMCacheError, with nothing left open."""
        policy = spec.eviction.policy.settings if spec.eviction else None
        self.hidden.learn(secrets_in(spec.settings) | secrets_in(spec.given) | secrets_in(policy))
        for serde in spec.serdes.serdes if spec.serdes else ():
            self.hidden.learn(secrets_in(serde.settings))
        own = replace(self.context, name=spec.name, logger=logging.getLogger(f"lmcache.l2.{spec.name}"))
        adapter = open_spec(spec, self.plugins, own, self.layouts)
        client = AdapterClient(index, spec.name, adapter, adapter.capabilities, own.clock, timeout_seconds)
        if not client.is_read_only:
            client.feed = AdapterFeed(client, spec.offer.name)
        if spec.eviction is None:
            return RunningAdapter(spec, client)
        with ExitStack() as undo:
            undo.callback(client.close, ADAPTER_CLOSE_SECONDS)
            eviction = open_l2_eviction(spec.eviction, client, self.plugins, own.clock, own.events, self.kernels)
            undo.pop_all()
        return RunningAdapter(spec, client, eviction)


def open_l2(
    specs: Sequence[AdapterSpec], opener: AdapterOpener, timeout_seconds: float, undo: ExitStack
) -> tuple[RunningAdapter, ...]:
    """The adapters in their order.  Those that were opened are closed by `undo`."""
    adapters: list[RunningAdapter] = []
    for index, spec in enumerate(specs):
        adapters.append(opener.open(spec, index, timeout_seconds))
        undo.callback(adapters[-1].client.close, ADAPTER_CLOSE_SECONDS)
    return tuple(adapters)
