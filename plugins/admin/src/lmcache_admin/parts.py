"""What the routes of the admin API answer from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lmcache_admin.l1_listing import L1Listing
from lmcache_admin.l2_deletions import L2Deletions
from lmcache_admin.l2_listing import L2Listing
from lmcache_admin.openings import Openings
from lmcache_admin.pins import Pins
from lmcache_admin.prefetch_orders import PrefetchOrders
from lmcache_core import ServerControl, ServerView, SystemClock


@dataclass(frozen=True, slots=True, eq=False)
class AdminParts:
    """All are called on threads of a pool, so that they may take locks and wait."""

    view: Callable[[], ServerView]
    control: ServerControl
    openings: Openings
    pins: Pins
    l1: L1Listing
    l2: L2Listing
    deletions: L2Deletions
    orders: PrefetchOrders


def open_parts(view: Callable[[], ServerView], control: ServerControl) -> AdminParts:
    """`view` is called when a request comes, because the API is opened before the server runs."""
    clock, keys = SystemClock(), L2Listing(control.adapters.clients)
    pins = Pins(control.cache, clock)
    return AdminParts(
        view,
        control,
        Openings(),
        pins,
        L1Listing(control.cache, pins),
        keys,
        L2Deletions(keys, clock),
        PrefetchOrders(control.cache, pins, clock),
    )
