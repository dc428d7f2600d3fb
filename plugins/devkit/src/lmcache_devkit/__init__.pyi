from .coordinator_state_suite import CoordinatorStateSuite as CoordinatorStateSuite
from .coordinator_view_suite import CoordinatorViewSuite as CoordinatorViewSuite
from .cue_adapter import CueAdapter as CueAdapter
from .engine_requests import EngineRequest as EngineRequest
from .event_recorder import EventRecorder as EventRecorder
from .eviction_suite import EvictionPolicySuite as EvictionPolicySuite
from .fake_clock import FakeClock as FakeClock
from .fake_engine import FakeEngine as FakeEngine
from .fake_server_view import FakeServerView as FakeServerView
from .fault_inject import FaultInjectAdapter as FaultInjectAdapter
from .fault_plan import Fault as Fault, FaultPlan as FaultPlan
from .http_routes_suite import HttpRoutesSuite as HttpRoutesSuite
from .l2.declared import UndeclaredCapability as UndeclaredCapability
from .l2.file_media import FileMedia as FileMedia
from .l2.media import Media as Media
from .l2_driver import L2Driver as L2Driver
from .l2_eviction_suite import L2EvictionSuite as L2EvictionSuite
from .l2_suite import L2AdapterSuite as L2AdapterSuite
from .borrowed_memory import (
    BorrowedMemory as BorrowedMemory,
    adapter_context as adapter_context,
    object_key as object_key,
    payload_of as payload_of,
)
from .offer_under_test import OfferSuite as OfferSuite, OpenableOffer as OpenableOffer
from .l1_memory_suite import L1MemorySuite as L1MemorySuite
from .ports import free_port as free_port, free_ports as free_ports
from .prefetch_policy_suite import PrefetchPolicySuite as PrefetchPolicySuite
from .request_module_suite import RequestModuleSuite as RequestModuleSuite
from .selector_suite import SelectorSuite as SelectorSuite
from .serde_suite import SerdeSuite as SerdeSuite
from .service_suite import FakeServiceContext as FakeServiceContext, ServiceSuite as ServiceSuite
from .stalling import fail_methods as fail_methods, stall_methods as stall_methods
from .store_policy_suite import StorePolicySuite as StorePolicySuite
from .subscriber_suite import SubscriberSuite as SubscriberSuite
from .transfer_channel_suite import TransferChannelSuite as TransferChannelSuite
from .trace_player import Replay as Replay, TracePlayer as TracePlayer, TraceTarget as TraceTarget

__version__: str

__all__: list[str]
