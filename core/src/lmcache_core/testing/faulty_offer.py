"""`faulty`, an L2 adapter that a server under test can be given: `--plugin lmcache_core.testing.faulty_offer`."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Capability, Offer, hookimpl

LMCACHE_PLUGIN_API = 1

_HERE = "lmcache_core.testing"
_OF_MEMORY = Capability.DELETE | Capability.USAGE | Capability.LIST


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    opener, settings = f"{_HERE}.faulty_adapter:open_faulty", f"{_HERE}.faulty_settings:FaultySettings"
    return [Offer("faulty", "Another adapter, with faults", opener, settings, _OF_MEMORY)]
