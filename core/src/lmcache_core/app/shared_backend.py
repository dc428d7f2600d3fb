"""What may be asked of a backend that other servers use, too."""

from __future__ import annotations

from lmcache_client.errors import ConfigError
from lmcache_core.app.l2_eviction_spec import L2EvictionSpec
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.settings import PluginSettings


def check_shared(where: str, offer: Offer, settings: PluginSettings | None, eviction: L2EvictionSpec | None) -> None:
    """Adapters say it with the fields `shared` and `owner`, and `owns` where the latter follows from the former.  Raises
    ConfigError where several servers would evict from one backend, or the adapter does not let several use it."""
    if getattr(settings, "shared", None) is not True:
        return
    if Capability.SHARED not in offer.capabilities | offer.optional_capabilities and not offer.wraps:
        raise ConfigError(
            f"{where}: field 'shared' is true, but adapter '{offer.name}' keeps a backend to one server; "
            "leave it out, and give each server a place of its own"
        )
    if eviction is not None and getattr(settings, "owns", getattr(settings, "owner", None)) is not True:
        raise ConfigError(
            f"{where}: field 'eviction' is for the owner of a shared backend: set 'owner' to true on the one server that is "
            "to evict, and leave 'eviction' out on the others"
        )
