"""What an offer promises of what it opens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmcache_core import Capability, Offer, StorageFacts
from lmcache_devkit.offer_under_test import OpenableOffer

DELETE, LIST, DURABLE = Capability.DELETE, Capability.LIST, Capability.DURABLE


@pytest.mark.parametrize(
    ("has", "allowed"),
    [
        (DELETE, True),
        (DELETE | DURABLE, True),
        (DURABLE, False),
        (Capability.NONE, False),
        (DELETE | LIST, False),
        (DELETE | DURABLE | LIST, False),
    ],
)
def test_an_adapter_has_what_is_promised_and_of_the_rest_only_what_is_optional(has: Capability, allowed: bool) -> None:
    offer = Offer("acme", "s", "acme:open", capabilities=DELETE, optional_capabilities=DURABLE)
    assert offer.allows(has) is allowed


def test_one_that_wraps_another_may_have_whatever_that_has() -> None:
    assert Offer("around", "s", "acme:open", wraps=True).allows(DELETE | LIST)


def test_an_offer_travels_to_another_process_with_all_it_promises() -> None:
    offer = Offer("acme", "s", "acme:open", capabilities=DELETE | LIST, optional_capabilities=DURABLE)
    assert OpenableOffer.from_json(OpenableOffer(offer, {}).to_json()).offer == offer
    facts = replace(offer, operations=("store", "retrieve"), storage=StorageFacts(folders=("path",), in_memory=True))
    assert OpenableOffer.from_json(OpenableOffer(facts, {}).to_json()).offer == facts
