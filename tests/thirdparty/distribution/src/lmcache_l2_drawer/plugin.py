"""What this distribution offers."""

from lmcache_core import Capability, Offer, hookimpl

HERE = "lmcache_l2_drawer.adapter"


@hookimpl
def lmcache_l2_adapters():
    can = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.DURABLE
    return [Offer("drawer", "Objects in an SQLite database", f"{HERE}:open_drawer", f"{HERE}:DrawerSettings", can)]
