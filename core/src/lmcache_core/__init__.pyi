from lmcache_client import (
    ABANDON_STORE as ABANDON_STORE,
    AsyncEngineClient as AsyncEngineClient,
    BlockAllocation as BlockAllocation,
    ChunkLayout as ChunkLayout,
    CLEAR as CLEAR,
    ClientHello as ClientHello,
    COMMIT_RETRIEVE as COMMIT_RETRIEVE,
    COMMIT_STORE as COMMIT_STORE,
    CompositeLayout as CompositeLayout,
    ConfigError as ConfigError,
    encode_tokens as encode_tokens,
    END_SESSION as END_SESSION,
    EngineChannel as EngineChannel,
    EngineClient as EngineClient,
    EngineDrivenRegistration as EngineDrivenRegistration,
    EngineKey as EngineKey,
    FREE_LOOKUP_LOCKS as FREE_LOOKUP_LOCKS,
    GET_CHUNK_SIZE as GET_CHUNK_SIZE,
    GET_EXPERIMENTAL as GET_EXPERIMENTAL,
    Heartbeat as Heartbeat,
    HELLO as HELLO,
    ITEM_BYTES as ITEM_BYTES,
    joined_layout as joined_layout,
    L1Segment as L1Segment,
    LayoutPart as LayoutPart,
    LMCacheError as LMCacheError,
    LOOKUP as LOOKUP,
    NoAnswerError as NoAnswerError,
    NOOP as NOOP,
    ObjectLayout as ObjectLayout,
    opaque_layout as opaque_layout,
    Operation as Operation,
    PING as PING,
    PREPARE_RETRIEVE as PREPARE_RETRIEVE,
    PREPARE_STORE as PREPARE_STORE,
    PrepareRetrieveReply as PrepareRetrieveReply,
    PrepareStoreReply as PrepareStoreReply,
    PromptTokens as PromptTokens,
    ProtocolError as ProtocolError,
    QUERY_PREFETCH_STATUS as QUERY_PREFETCH_STATUS,
    REGISTER_ENGINE_DRIVEN as REGISTER_ENGINE_DRIVEN,
    REGISTER_WORKER as REGISTER_WORKER,
    REPORT_BLOCK_ALLOCATION as REPORT_BLOCK_ALLOCATION,
    ResourceError as ResourceError,
    RetrieveContext as RetrieveContext,
    ServerChange as ServerChange,
    ServerHello as ServerHello,
    SharedMemoryOffer as SharedMemoryOffer,
    SlotDescriptor as SlotDescriptor,
    StoreContext as StoreContext,
    UNREGISTER_ENGINE_DRIVEN as UNREGISTER_ENGINE_DRIVEN,
    WAIT_PREFETCH_STATUS as WAIT_PREFETCH_STATUS,
    WorkerRegistration as WorkerRegistration,
)

from .app.console.command_line import CommandParser as CommandParser
from .app.local_cache import LocalCache as LocalCache, open_local as open_local
from .app.masking import masked as masked
from .contracts.l1_memory import BorrowedBuffer as BorrowedBuffer, MemoryRegion as MemoryRegion
from .contracts.l1_memory import L1Memory as L1Memory, L1MemoryContext as L1MemoryContext
from .contracts.capability import Capability as Capability
from .contracts.clock import Clock as Clock, SystemClock as SystemClock
from .contracts.command import Command as Command, CommandContext as CommandContext, PluginCatalog as PluginCatalog
from .contracts.completion import (
    BuffersReleased as BuffersReleased,
    Completion as Completion,
    CompletionSource as CompletionSource,
    JobDone as JobDone,
    JobId as JobId,
)
from .contracts.conditions import (
    ActiveCondition as ActiveCondition,
    Condition as Condition,
    server_state as server_state,
    ServerState as ServerState,
    Severity as Severity,
    state_reason as state_reason,
)
from .contracts.l2_adapter import AdapterContext as AdapterContext
from .contracts.events import (
    AdapterAdded as AdapterAdded,
    AdapterHealthChanged as AdapterHealthChanged,
    AdapterRemoved as AdapterRemoved,
    BlocksAllocated as BlocksAllocated,
    CacheCleared as CacheCleared,
    ChunksEvicted as ChunksEvicted,
    ChunksRetrieved as ChunksRetrieved,
    ChunksStored as ChunksStored,
    Event as Event,
    L2LookupCompleted as L2LookupCompleted,
    LeasesExpired as LeasesExpired,
    LoadCompleted as LoadCompleted,
    LoadsDeclined as LoadsDeclined,
    LoadSubmitted as LoadSubmitted,
    LookupAbandoned as LookupAbandoned,
    LookupFinished as LookupFinished,
    LookupHashes as LookupHashes,
    LookupStarted as LookupStarted,
    ObjectRejected as ObjectRejected,
    ObjectsAdded as ObjectsAdded,
    ObjectsEvicted as ObjectsEvicted,
    ObjectsRead as ObjectsRead,
    ObjectsRemoved as ObjectsRemoved,
    PrefetchCompleted as PrefetchCompleted,
    PrefetchSubmitted as PrefetchSubmitted,
    Publisher as Publisher,
    QuotaChanged as QuotaChanged,
    QuotaReached as QuotaReached,
    RequestAnswered as RequestAnswered,
    RequestEnded as RequestEnded,
    SettingChanged as SettingChanged,
    StoreCompleted as StoreCompleted,
    StoreRefused as StoreRefused,
    StoresDropped as StoresDropped,
    StoreSubmitted as StoreSubmitted,
    WorkerLeft as WorkerLeft,
    WorkerRegistered as WorkerRegistered,
)
from .contracts.hookspecs import CONTRACT_VERSION as CONTRACT_VERSION, hookimpl as hookimpl
from .contracts.http_route import (
    HttpAnswer as HttpAnswer,
    HttpContext as HttpContext,
    HttpRefusal as HttpRefusal,
    HttpRequest as HttpRequest,
    HttpRoute as HttpRoute,
    PluginRoute as PluginRoute,
    RouteCheck as RouteCheck,
)
from .contracts.l2_adapter import (
    CircuitState as CircuitState,
    CircuitStatus as CircuitStatus,
    L2Adapter as L2Adapter,
    LoadItem as LoadItem,
    StoreItem as StoreItem,
)
from .contracts.l2_eviction import (
    AdapterListener as AdapterListener,
    EvictedAdapter as EvictedAdapter,
    L2Eviction as L2Eviction,
    L2EvictionContext as L2EvictionContext,
    L2EvictionCounts as L2EvictionCounts,
    L2EvictionSettings as L2EvictionSettings,
    PolicySeat as PolicySeat,
)
from .contracts.offer import (
    CheckResult as CheckResult,
    Offer as Offer,
    SettingGroup as SettingGroup,
    StorageFacts as StorageFacts,
)
from .contracts.operation import (
    Call as Call,
    DEFERRED as DEFERRED,
    ELSEWHERE as ELSEWHERE,
    Handler as Handler,
    HandlerMode as HandlerMode,
    Stream as Stream,
)
from .contracts.policies import (
    AccessFacts as AccessFacts,
    AdapterFacts as AdapterFacts,
    EvictionDemand as EvictionDemand,
    EvictionPolicy as EvictionPolicy,
    InsertFacts as InsertFacts,
    LoadFacts as LoadFacts,
    PrefetchFacts as PrefetchFacts,
    PrefetchPlan as PrefetchPlan,
    PrefetchPolicy as PrefetchPolicy,
    RequestFacts as RequestFacts,
    StoredObject as StoredObject,
    StorePlan as StorePlan,
    StorePolicy as StorePolicy,
    WantedObject as WantedObject,
)
from .contracts.residency import (
    Change as Change,
    ChangeKind as ChangeKind,
    Changes as Changes,
    Overrun as Overrun,
    ResidencyFeed as ResidencyFeed,
    SnapshotPart as SnapshotPart,
)
from .contracts.counts import (
    AdapterCounts as AdapterCounts,
    HandshakeCounters as HandshakeCounters,
    OTHER_TENANT as OTHER_TENANT,
    PrefetchCounts as PrefetchCounts,
    RouterCounters as RouterCounters,
    SlotCounts as SlotCounts,
    StoreCounts as StoreCounts,
    StoreView as StoreView,
    SubscriberState as SubscriberState,
    SubscriberStatus as SubscriberStatus,
    Tenant as Tenant,
    TenantCounts as TenantCounts,
    TENANTS_MAX as TENANTS_MAX,
    VerbCounts as VerbCounts,
)
from .contracts.samples import (
    BOUNDS_SECONDS as BOUNDS_SECONDS,
    Durations as Durations,
    Histogram as Histogram,
    Sample as Sample,
    SampleKind as SampleKind,
)
from .contracts.server_counts import (
    AdapterView as AdapterView,
    L1Counts as L1Counts,
    L2Counts as L2Counts,
    PortCounts as PortCounts,
    ServerCounts as ServerCounts,
)
from .contracts.request_module import (
    ChunkHasher as ChunkHasher,
    ModuleContext as ModuleContext,
    ObjectGroup as ObjectGroup,
    PageMover as PageMover,
    ReadTokens as ReadTokens,
    RequestModule as RequestModule,
    SpaceFields as SpaceFields,
    TokenIds as TokenIds,
    Worker as Worker,
    Workers as Workers,
)
from .contracts.serde import (
    NamedSerde as NamedSerde,
    PARAMETERS_MAX_BYTES as PARAMETERS_MAX_BYTES,
    Serde as Serde,
    SerdeAdapter as SerdeAdapter,
    SerdeChainContext as SerdeChainContext,
    SerdeCounts as SerdeCounts,
    SerdeDirection as SerdeDirection,
    SerdeLayouts as SerdeLayouts,
)
from .contracts.cache_control import (
    AddressedChunks as AddressedChunks,
    AddressError as AddressError,
    CacheControl as CacheControl,
    CachedObject as CachedObject,
    ChunkAddress as ChunkAddress,
    ChunkLoad as ChunkLoad,
    LoadedChunks as LoadedChunks,
    PinOwner as PinOwner,
    PinTotals as PinTotals,
    References as References,
    UnknownShapeError as UnknownShapeError,
)
from .contracts.server_control import (
    AdapterAccess as AdapterAccess,
    AdapterControl as AdapterControl,
    AdapterState as AdapterState,
    ChangedSetting as ChangedSetting,
    NoSuchAdapterError as NoSuchAdapterError,
    NotNowError as NotNowError,
    open_without_limit as open_without_limit,
    Opening as Opening,
    OpeningAbandonedError as OpeningAbandonedError,
    Quota as Quota,
    FreezeControl as FreezeControl,
    QuotaControl as QuotaControl,
    QuotaRefusedError as QuotaRefusedError,
    ServerControl as ServerControl,
    SettingControl as SettingControl,
    ShownSetting as ShownSetting,
)
from .contracts.server_view import ServerInfo as ServerInfo
from .contracts.server_view import ServerView as ServerView
from .contracts.service import Service as Service, ServiceContext as ServiceContext
from .contracts.settings import explain as explain, PluginSettings as PluginSettings
from .contracts.storage import (
    LeasedObject as LeasedObject,
    ReadLease as ReadLease,
    SlotReferences as SlotReferences,
    LookupRequest as LookupRequest,
    PromptFacts as PromptFacts,
    READERS_MAX as READERS_MAX,
    Shard as Shard,
    SparseLookupRequest as SparseLookupRequest,
    Storage as Storage,
    StoredSpace as StoredSpace,
)
from .contracts.transfer_channel import (
    ChannelContext as ChannelContext,
    RemoteRead as RemoteRead,
    Route as Route,
    SECRET_BYTES as SECRET_BYTES,
    TransferChannel as TransferChannel,
)
from .contracts.subscriber import Subscriber as Subscriber, Subscriptions as Subscriptions
from .jobs.fault_log import FaultLog as FaultLog
from .jobs.queues import Inbox as Inbox
from .jobs.queues import CompletionQueue as CompletionQueue, Job as Job, JobTable as JobTable
from .kernels.choice import Kernels as Kernels
from .kernels.interfaces import Recency as Recency, SlotTable as SlotTable
from .model.results import Bitmap as Bitmap
from .model.names import parse_salt as parse_salt, salt_text as salt_text
from .model.errors import (
    AdapterError as AdapterError,
    DamagedObjectError as DamagedObjectError,
    PluginError as PluginError,
    UnreadableObjectError as UnreadableObjectError,
)
from .model.keys import (
    HashChain as HashChain,
    KeySpace as KeySpace,
    ObjectKey as ObjectKey,
    pack_kv_rank as pack_kv_rank,
    parse_canonical as parse_canonical,
)
from .model.keys import media_path as media_path
from .model.names import ModelName as ModelName, names_model as names_model, parse_model_name as parse_model_name
from .model.object_header import (
    Check as Check,
    check as check,
    HEADER_BYTES as HEADER_BYTES,
    inspect as inspect,
    NO_DIGEST as NO_DIGEST,
    ObjectHeader as ObjectHeader,
    SERDE_NAME_MAX_BYTES as SERDE_NAME_MAX_BYTES,
    SERDES_MAX as SERDES_MAX,
    seal as seal,
    seal_encoded as seal_encoded,
    SerdeMark as SerdeMark,
)
from .model.results import KeyPage as KeyPage, Outcome as Outcome, Usage as Usage
from .server.registrations import (
    check_groups as check_groups,
    Refusals as Refusals,
    registered_shards as registered_shards,
)
from .server.request_fields import (
    check_lookup_key as check_lookup_key,
    check_model_name as check_model_name,
    check_request_id as check_request_id,
    store_patience as store_patience,
    transfer_range as transfer_range,
    TransferRange as TransferRange,
)

__version__: str

__all__: list[str]
