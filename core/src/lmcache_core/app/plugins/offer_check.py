"""Whether what a hook returned is a list of offers that everybody else can rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.offer import Offer, SettingGroup, StorageFacts
from lmcache_core.model.errors import PluginContractError

_MAY_BE_DEFAULT: Final = (OfferKind.SUBSCRIBER, OfferKind.REQUEST_MODULE, OfferKind.HTTP_ROUTES, OfferKind.SERVICE)
"""Of every other kind, something is used because the configuration names it."""


def check_offers(plugin: str, kind: OfferKind, offers: Sequence[Any]) -> None:
    """Raise PluginContractError for the first fault of the first offer that has one."""
    seen = set()
    for offer in offers:
        if fault := _fault(kind, offer):
            raise PluginContractError(plugin, fault)
        if offer.name in seen:
            raise PluginContractError(plugin, f"{kind.label} '{offer.name}' is offered twice")
        seen.add(offer.name)


def check_groups(plugin: str, hook: str, groups: Sequence[Any]) -> None:
    """The same for groups of settings."""
    for group in groups:
        if not isinstance(group, SettingGroup):
            raise PluginContractError(plugin, f"{hook} returned {type(group).__name__} where SettingGroup belongs")
        if not _is_line(group.title):
            raise PluginContractError(plugin, f"{hook}: title is {_short(group.title)}, not one line of text")
        for part, text in (("model", group.model), ("apply", group.apply)):
            if not _is_import_string(text):
                fault = f"{part} is {text!r}, not an import string 'package.module:name'"
                raise PluginContractError(plugin, f"settings '{group.title}': {fault}")


def _fault(kind: OfferKind, offer: Any) -> str | None:
    if not isinstance(offer, Offer):
        return f"{kind.hook} returned {type(offer).__name__} where Offer belongs"
    if not _is_offer_name(offer.name):
        return f"{kind.hook} returned an Offer with the name {offer.name!r}; a name is a word such as 'fs'"
    fault = _fault_of_strings(offer) or _fault_of_values(kind, offer)
    return f"{kind.label} '{offer.name}': {fault}" if fault else None


def _fault_of_strings(offer: Any) -> str | None:
    optional = [(part, getattr(offer, part)) for part in ("settings", "check") if getattr(offer, part) is not None]
    for part, text in (("open", offer.open), *optional):
        if not _is_import_string(text):
            return f"{part} is {text!r}, not an import string 'package.module:name'"
    if not _is_line(offer.summary):
        return f"summary is {_short(offer.summary)}, not one line of text"
    return None


def _fault_of_values(kind: OfferKind, offer: Any) -> str | None:
    for part, flags in (("capabilities", offer.capabilities), ("optional_capabilities", offer.optional_capabilities)):
        if not isinstance(flags, Capability):
            return f"{part} is {_short(flags)}, not a Capability such as Capability.NONE"
    if not isinstance(offer.default, bool):
        return f"default is {_short(offer.default)}, not True or False"
    if offer.storage is not None and not isinstance(offer.storage, StorageFacts):
        return f"storage is {_short(offer.storage)}, not StorageFacts"
    if not isinstance(offer.operations, tuple) or not all(isinstance(each, str) for each in offer.operations):
        return f"operations is {_short(offer.operations)}, not a tuple of names"
    if offer.default and kind not in _MAY_BE_DEFAULT:
        return (
            "default is True, which is for subscribers, request modules, HTTP routes and services alone; leave it out"
        )
    return None


def _short(value: object) -> str:
    return repr(value)[:80]


# Without regular expressions, which would cost every listing the time to compile them.


def _is_offer_name(name: object) -> bool:
    """A letter, then letters, digits and any of "_.-"."""
    if not (isinstance(name, str) and name.isascii() and name[:1].isalpha()):
        return False
    return all(each.isalnum() or each in "_.-" for each in name)


def _is_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and not text.isspace() and text != ""


def _is_import_string(text: object) -> bool:
    """`package.module:name`"""
    if not isinstance(text, str):
        return False
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))
