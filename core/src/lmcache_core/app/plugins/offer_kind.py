"""The kinds of things that plugins offer."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lmcache_core.contracts.offer import Offer


class OfferKind(StrEnum):
    """Each has the hook that returns the offers, the beginning of the name of a plugin for it, and what people call one.  The
    distribution lmcache-l2-acme has the plugin l2_acme, which offers `acme`.

    The members are core's.  A kind that a library or a plugin defines is OfferKind(word), equal to any other of the word, for
    the hook `lmcache_` + word + `s`."""

    hook: str
    prefix: str
    label: str

    def __new__(cls, word: str, hook: str = "", prefix: str = "", label: str = "") -> OfferKind:
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.hook, kind.prefix, kind.label = f"lmcache_{hook}", prefix, label or word.replace("_", " ")
        return kind

    @classmethod
    def _missing_(cls, value: object) -> OfferKind | None:
        if not (isinstance(value, str) and value.isidentifier()):
            return None
        kind = str.__new__(cls, value)
        kind._name_ = kind._value_ = value
        kind.hook, kind.prefix, kind.label = f"lmcache_{value}s", value, value.replace("_", " ")
        return kind

    @classmethod
    def of_hook(cls, hook: str) -> OfferKind:
        """The kind of what a hook that core does not define returns."""
        return cls(hook.removeprefix("lmcache_").removesuffix("s"))

    L2_ADAPTER = "l2_adapter", "l2_adapters", "l2", "L2 adapter"
    EVICTION_POLICY = "eviction_policy", "eviction_policies", "eviction"
    STORE_POLICY = "store_policy", "store_policies", "store"
    PREFETCH_POLICY = "prefetch_policy", "prefetch_policies", "prefetch"
    SERDE = "serde", "serdes", "serde"
    REQUEST_MODULE = "request_module", "request_modules", "request"
    SUBSCRIBER = "subscriber", "subscribers", "subscriber"
    HTTP_ROUTES = "http_routes", "http_routes", "http", "HTTP routes"
    SERVICE = "service", "services", "service"
    TRANSFER_CHANNEL = "transfer_channel", "transfer_channels", "channel"
    L1_MEMORY = "l1_memory", "l1_memories", "l1", "L1 memory"
    COMMAND = "command", "commands", "command"


class Offered(NamedTuple):
    """One answer to one hook."""

    kind: OfferKind
    offer: Offer
