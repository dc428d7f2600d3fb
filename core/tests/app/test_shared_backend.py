"""One server evicts from a backend that several use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.adapter_specs import L2EvictionSpec, check_shared, l2_eviction_spec
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer, StorageFacts
from lmcache_core.contracts.settings import PluginSettings

FACTS = StorageFacts(shared="shared", owner="owner")
SHARED = Offer("acme", "", "acme:open", capabilities=Capability.SHARED, storage=FACTS)
DERIVED = replace(SHARED, storage=StorageFacts(shared="shared", owner="owns"))
ALONE = Offer("acme", "", "acme:open", storage=FACTS)


class Settings(PluginSettings):
    shared: bool = False
    owner: bool | None = None


class Derived(Settings):
    @property
    def owns(self) -> bool:
        return not self.shared if self.owner is None else self.owner


class Unrelated(PluginSettings):
    shared: str = "true"


def eviction() -> L2EvictionSpec:
    return l2_eviction_spec({"eviction_policy": "LRU"}, load_plugins(), "--l2-adapter[0].eviction")


@pytest.mark.parametrize(
    ("offer", "settings"),
    [
        (SHARED, None),
        (SHARED, Unrelated()),
        (SHARED, Settings()),
        (SHARED, Settings(shared=True, owner=True)),
        (DERIVED, Derived(shared=True, owner=True)),
        (DERIVED, Derived()),
        (replace(SHARED, storage=None), Settings(shared=True)),
    ],
)
def test_an_owner_may_evict(offer: Offer, settings: PluginSettings | None) -> None:
    check_shared("--l2-adapter[0]", offer, settings, eviction())


@pytest.mark.parametrize(
    ("offer", "settings"),
    [
        (SHARED, Settings(shared=True)),
        (DERIVED, Derived(shared=True)),
        (DERIVED, Derived(shared=True, owner=False)),
        (replace(SHARED, storage=StorageFacts(shared="shared")), Settings(shared=True, owner=True)),
    ],
)
def test_a_guest_that_would_evict_is_refused_with_the_remedy(offer: Offer, settings: PluginSettings) -> None:
    check_shared("--l2-adapter[0]", offer, settings, None)
    with pytest.raises(
        ConfigError, match=r"--l2-adapter\[0\]: field 'eviction' .* set 'owner' to true on the one server"
    ):
        check_shared("--l2-adapter[0]", offer, settings, eviction())


def test_what_cannot_be_shared_is_refused_at_the_start() -> None:
    check_shared("--l2-adapter[0]", ALONE, Settings(), None)
    with pytest.raises(ConfigError, match=r"'shared' is true, but adapter 'acme' keeps a backend to one server"):
        check_shared("--l2-adapter[0]", ALONE, Settings(shared=True), None)
