"""One value says everything about a thing that a plugin offers."""

from __future__ import annotations

from dataclasses import dataclass

from lmcache_core.contracts.capability import Capability


@dataclass(frozen=True, slots=True)
class Offer:
    """A named thing: an adapter type, a policy, a request module, a subscriber, a group of HTTP routes, a service.

    `settings` and `open` are import strings (`package.module:name`), so that listing offers imports neither the
    settings model nor a client library.  `settings` names a `PluginSettings` model (None: it takes no settings);
    `open` is called with the validated settings and the context of its kind, and returns the object.
    """

    name: str
    summary: str
    open: str
    settings: str | None = None
    capabilities: Capability = Capability.NONE
    optional_capabilities: Capability = Capability.NONE
    """What an adapter promises with some of its settings only: the opened one says which of them it has."""
    default: bool = False
    """True: active without being named.  For subscribers, request modules, HTTP routes and services."""
    wraps: bool = False
    """True: an L2 adapter around another one, which its settings name; its capabilities follow from that one's."""

    def allows(self, capabilities: Capability) -> bool:
        """May an adapter of this offer declare these?  All that it has in any case, and of the others only optional ones."""
        if self.wraps:
            return True
        return capabilities & ~self.optional_capabilities == self.capabilities & ~self.optional_capabilities
