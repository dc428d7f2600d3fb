"""The hooks.  A plugin is a module with functions of these names, each decorated with `hookimpl`.

Hooks run when the server starts and stops, and return objects; no hook is called on a request's path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from lmcache_core.contracts.offer import Offer, SettingGroup
    from lmcache_core.contracts.server_view import ServerInfo

PROJECT = "lmcache"
CONTRACT_VERSION = 1
"""Major version of everything in `lmcache_core`'s public API; the entry-point group carries it."""
ENTRY_POINT_GROUP = f"lmcache.plugins.v{CONTRACT_VERSION}"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def lmcache_l2_adapters() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return the adapter types that `--l2-adapter` may name;
    `open(settings, AdapterContext) -> L2Adapter`."""


@hookspec
def lmcache_serdes() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return serdes that the `serde` of an `--l2-adapter` may name;
    `open(settings) -> Serde`."""


@hookspec
def lmcache_l1_memories() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return memories for L1 other than core's;
    `open(settings, L1MemoryContext) -> L1Memory`."""


@hookspec
def lmcache_eviction_policies() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return policies for `--eviction-policy`;
    `open(settings) -> EvictionPolicy`."""


@hookspec
def lmcache_store_policies() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return policies for `--l2-store-policy`;
    `open(settings) -> StorePolicy`."""


@hookspec
def lmcache_prefetch_policies() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return policies for `--l2-prefetch-policy`;
    `open(settings) -> PrefetchPolicy`."""


@hookspec
def lmcache_request_modules() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return modules that answer requests of engines;
    `open(settings, ModuleContext) -> RequestModule`."""


@hookspec
def lmcache_subscribers() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return listeners to events;
    `open(settings) -> Subscriber`."""


@hookspec
def lmcache_http_routes() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return groups of routes of the admin HTTP API;
    `open(settings, HttpContext) -> Sequence[HttpRoute]`."""


@hookspec
def lmcache_services() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return services, which run in the server beside the request path;
    `open(settings, ServiceContext) -> Service`."""


@hookspec
def lmcache_transfer_channels() -> Sequence[Offer]:
    """Called once, before the configuration is read.  Return ways to read the L1 memory of other servers;
    `open(settings, ChannelContext) -> TransferChannel`."""


@hookspec
def lmcache_commands() -> Sequence[Offer]:
    """Called once, when `lmcache` is asked for a command that is not core's own, or lists its commands.  Return commands;
    `open(arguments: Sequence[str], CommandContext) -> int` runs one and returns the exit code."""


@hookspec
def lmcache_settings() -> Sequence[SettingGroup]:
    """Called once, before the configuration is read.  Return groups of settings: flags, variables and keys of the file, and
    what they mean for the plugin's offers."""


@hookspec
def lmcache_server_started(server: ServerInfo) -> None:
    """Called once, when the engine port answers.  Must return quickly; what it raises is logged."""


@hookspec
def lmcache_server_stopping(server: ServerInfo) -> None:
    """Called once, when the server was asked to stop and before anything is closed.  What it raises is logged."""
