"""For plugin authors' tests: the laws of each kind of offer, and what stands in for a server.

    from lmcache_core.testing import L2AdapterSuite

    class TestAcme(L2AdapterSuite):
        offer = "acme"

Install `lmcache-core[testing]`.  Names are imported when they are first used, so that a suite costs nothing to those who
do not run it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmcache_core.testing.cue_adapter import CueAdapter
    from lmcache_core.testing.event_recorder import EventRecorder
    from lmcache_core.testing.eviction_suite import EvictionPolicySuite
    from lmcache_core.testing.fake_clock import FakeClock
    from lmcache_core.testing.fake_engine import FakeEngine
    from lmcache_core.testing.fake_server_view import FakeServerView
    from lmcache_core.testing.fault_inject import FaultInjectAdapter
    from lmcache_core.testing.fault_plan import Fault, FaultPlan
    from lmcache_core.testing.http_routes_suite import HttpRoutesSuite
    from lmcache_core.testing.l2.file_media import FileMedia
    from lmcache_core.testing.l2.media import Media
    from lmcache_core.testing.l2_driver import L2Driver
    from lmcache_core.testing.l2_suite import L2AdapterSuite
    from lmcache_core.testing.lent_memory import LentMemory, adapter_context, object_key, payload_of
    from lmcache_core.testing.offer_under_test import OfferSuite, OpenableOffer
    from lmcache_core.testing.prefetch_policy_suite import PrefetchPolicySuite
    from lmcache_core.testing.request_module_suite import RequestModuleSuite
    from lmcache_core.testing.serde_suite import SerdeSuite
    from lmcache_core.testing.stalling import stall_methods
    from lmcache_core.testing.store_policy_suite import StorePolicySuite
    from lmcache_core.testing.subscriber_suite import SubscriberSuite
    from lmcache_core.testing.trace_player import Replay, TracePlayer, TraceTarget
    from lmcache_core.testing.undeclared import UndeclaredCapability

_HOMES = {
    "cue_adapter": ("CueAdapter",),
    "event_recorder": ("EventRecorder",),
    "eviction_suite": ("EvictionPolicySuite",),
    "fake_clock": ("FakeClock",),
    "fake_engine": ("FakeEngine",),
    "fake_server_view": ("FakeServerView",),
    "fault_inject": ("FaultInjectAdapter",),
    "fault_plan": ("Fault", "FaultPlan"),
    "http_routes_suite": ("HttpRoutesSuite",),
    "l2.file_media": ("FileMedia",),
    "l2.media": ("Media",),
    "l2_driver": ("L2Driver",),
    "l2_suite": ("L2AdapterSuite",),
    "lent_memory": ("LentMemory", "adapter_context", "object_key", "payload_of"),
    "offer_under_test": ("OfferSuite", "OpenableOffer"),
    "prefetch_policy_suite": ("PrefetchPolicySuite",),
    "request_module_suite": ("RequestModuleSuite",),
    "serde_suite": ("SerdeSuite",),
    "stalling": ("stall_methods",),
    "store_policy_suite": ("StorePolicySuite",),
    "subscriber_suite": ("SubscriberSuite",),
    "trace_player": ("Replay", "TracePlayer", "TraceTarget"),
    "undeclared": ("UndeclaredCapability",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # spelled out for type checkers; a test holds it against _HOMES
    "CueAdapter",
    "EventRecorder",
    "EvictionPolicySuite",
    "FakeClock",
    "FakeEngine",
    "FakeServerView",
    "Fault",
    "FaultInjectAdapter",
    "FaultPlan",
    "FileMedia",
    "HttpRoutesSuite",
    "L2AdapterSuite",
    "L2Driver",
    "LentMemory",
    "Media",
    "OfferSuite",
    "OpenableOffer",
    "PrefetchPolicySuite",
    "Replay",
    "RequestModuleSuite",
    "SerdeSuite",
    "StorePolicySuite",
    "SubscriberSuite",
    "TracePlayer",
    "TraceTarget",
    "UndeclaredCapability",
    "adapter_context",
    "object_key",
    "payload_of",
    "stall_methods",
]


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module 'lmcache_core.testing' has no attribute '{name}'")
    value = getattr(import_module(f"lmcache_core.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
