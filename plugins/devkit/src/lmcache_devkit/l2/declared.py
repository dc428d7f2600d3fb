"""What is declared is what is there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import pytest

from lmcache_client.errors import LMCacheError
from lmcache_core.contracts.capability import Capability
from lmcache_core.model.object_header import HEADER_BYTES
from lmcache_core.model.results import Outcome
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_devkit.l2.rig import OBJECT_BYTES, Rig

DONE, MISSING = Outcome.DONE, Outcome.MISSING


class UndeclaredCapability(UserWarning):
    """An adapter passed the small probe of a capability that its offer does not declare.

    A probe is not a proof: declare the capability and let all of its checks run, or leave it if it works by chance only."""


class Declared(L2Fixtures):
    def test_offer_and_adapter_declare_the_same_capabilities(self, rig: Rig) -> None:
        offer, has = rig.under_test.offer, rig.capabilities
        optional = f" and perhaps {offer.optional_capabilities!r}" if offer.optional_capabilities else ""
        assert offer.allows(has), f"the offer says {offer.capabilities!r}{optional}, the adapter {has!r}"

    @pytest.mark.parametrize(
        "capability", ["DELETE", "USAGE", "LIST", "DURABLE", "SHARED", "VERIFIES"]
    )  # ZERO_COPY cannot be seen from here
    def test_what_is_not_declared_is_not_there(self, rig: Rig, capability: str) -> None:
        """Warns where a small probe says otherwise."""
        wanted = Capability[capability]
        if wanted in rig.capabilities:
            return
        if PROBES[wanted](rig):
            warnings.warn(
                f"'{rig.under_test.offer.name}' does not declare {capability}, and passes its probe; declare it if "
                "that is meant, so that the server uses it and its requirements run",
                UndeclaredCapability,
                stacklevel=1,
            )


def _deletes(rig: Rig) -> bool:
    (key,) = rig.put(1)
    return rig.driver.delete(key) == (DONE,) and rig.driver.has(key) == (MISSING,)


def _counts(rig: Rig) -> bool:
    before = rig.driver.adapter.usage()
    rig.put(2)
    after = rig.driver.adapter.usage()
    if before is None or after is None:
        return False
    return (after.objects - before.objects, after.used_bytes - before.used_bytes) == (2, 2 * OBJECT_BYTES)


def _lists(rig: Rig) -> bool:
    keys = rig.put(3)
    return set(rig.own(rig.driver.keys(1_000))) == set(keys)


def _lasts(rig: Rig) -> bool:
    if rig.is_read_only:
        return False  # what others have put there outlives any adapter
    keys = rig.put(2)
    return rig.reopen().has(*keys) == (DONE, DONE)


def _shares(rig: Rig) -> bool:
    if rig.is_read_only:
        return False  # any number of readers sees what others have put there
    try:
        other = rig.open()
    except LMCacheError:
        return False  # as it should be: the backend has one owner
    keys = rig.put(2)
    return other.has(*keys) == (DONE, DONE)


def _verifies(rig: Rig) -> bool:
    """Does it see a changed bit of a payload?"""
    key = rig.key(0)
    _, buffer = rig.whole(key)
    buffer.view[HEADER_BYTES + 5] ^= 1
    if rig.driver.store((key, buffer)) != (DONE,):
        return False
    return rig.driver.load(rig.empty(key)) == (Outcome.DAMAGED,)


PROBES: Final[Mapping[Capability, Callable[[Rig], bool]]] = MappingProxyType(
    {
        Capability.DELETE: _deletes,
        Capability.USAGE: _counts,
        Capability.LIST: _lists,
        Capability.DURABLE: _lasts,
        Capability.SHARED: _shares,
        Capability.VERIFIES: _verifies,
    }
)
