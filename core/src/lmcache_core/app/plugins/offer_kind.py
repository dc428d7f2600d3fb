"""The kinds of things that plugins offer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmcache_core.contracts.offer import Offer


class OfferKind(StrEnum):
    """`hook` returns the offers, `label` is what people call one, and `prefix` begins the name of a plugin for it."""

    L2_ADAPTER = "l2_adapter"
    EVICTION_POLICY = "eviction_policy"
    STORE_POLICY = "store_policy"
    PREFETCH_POLICY = "prefetch_policy"
    SERDE = "serde"
    REQUEST_MODULE = "request_module"
    SUBSCRIBER = "subscriber"
    HTTP_ROUTES = "http_routes"
    SERVICE = "service"
    L1_MEMORY = "l1_memory"
    COMMAND = "command"

    @property
    def hook(self) -> str:
        return HOOKS[self]

    @property
    def label(self) -> str:
        return _LABELS.get(self) or self.replace("_", " ")

    @property
    def prefix(self) -> str:
        """As in the distribution lmcache-l2-acme and its plugin l2_acme, which offer `acme`."""
        return _PREFIXES[self]


HOOKS = {
    OfferKind.L1_MEMORY: "lmcache_l1_memories",
    OfferKind.L2_ADAPTER: "lmcache_l2_adapters",
    OfferKind.SERDE: "lmcache_serdes",
    OfferKind.EVICTION_POLICY: "lmcache_eviction_policies",
    OfferKind.STORE_POLICY: "lmcache_store_policies",
    OfferKind.PREFETCH_POLICY: "lmcache_prefetch_policies",
    OfferKind.REQUEST_MODULE: "lmcache_request_modules",
    OfferKind.SUBSCRIBER: "lmcache_subscribers",
    OfferKind.HTTP_ROUTES: "lmcache_http_routes",
    OfferKind.SERVICE: "lmcache_services",
    OfferKind.COMMAND: "lmcache_commands",
}
"""The hook that returns the offers of a kind."""
_PREFIXES = {
    OfferKind.L1_MEMORY: "l1",
    OfferKind.L2_ADAPTER: "l2",
    OfferKind.SERDE: "serde",
    OfferKind.EVICTION_POLICY: "eviction",
    OfferKind.STORE_POLICY: "store",
    OfferKind.PREFETCH_POLICY: "prefetch",
    OfferKind.REQUEST_MODULE: "request",
    OfferKind.SUBSCRIBER: "subscriber",
    OfferKind.HTTP_ROUTES: "http",
    OfferKind.SERVICE: "service",
    OfferKind.COMMAND: "command",
}
_LABELS = {OfferKind.L1_MEMORY: "L1 memory", OfferKind.L2_ADAPTER: "L2 adapter", OfferKind.HTTP_ROUTES: "HTTP routes"}


@dataclass(frozen=True, slots=True)
class Offered:
    """One answer to one hook."""

    kind: OfferKind
    offer: Offer
