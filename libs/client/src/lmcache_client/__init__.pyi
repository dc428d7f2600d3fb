from .async_client import AsyncEngineClient as AsyncEngineClient
from .blend import (
    BLEND_COMMIT as BLEND_COMMIT,
    BLEND_LOOKUP as BLEND_LOOKUP,
    BLEND_PREPARE as BLEND_PREPARE,
    BlendAnswer as BlendAnswer,
    BlendMatch as BlendMatch,
    BlendSegment as BlendSegment,
    BlendSlots as BlendSlots,
    RopeTables as RopeTables,
)
from .channel import EngineChannel as EngineChannel
from .client import EngineClient as EngineClient
from .engine_key import (
    EngineKey as EngineKey,
    encode_tokens as encode_tokens,
    HashedKey as HashedKey,
    NO_TOKENS as NO_TOKENS,
)
from .errors import (
    ConfigError as ConfigError,
    LMCacheError as LMCacheError,
    NoAnswerError as NoAnswerError,
    ProtocolError as ProtocolError,
    ResourceError as ResourceError,
)
from .heartbeat import Heartbeat as Heartbeat, ServerChange as ServerChange
from .l1_segment import L1Segment as L1Segment
from .layout import (
    ChunkLayout as ChunkLayout,
    CompositeLayout as CompositeLayout,
    ITEM_BYTES as ITEM_BYTES,
    joined_layout as joined_layout,
    ObjectLayout as ObjectLayout,
    opaque_layout as opaque_layout,
)
from .messages import (
    BlockAllocation as BlockAllocation,
    ClientHello as ClientHello,
    EngineDrivenRegistration as EngineDrivenRegistration,
    LayoutPart as LayoutPart,
    PrepareRetrieveReply as PrepareRetrieveReply,
    PrepareStoreReply as PrepareStoreReply,
    RetrieveContext as RetrieveContext,
    ServerHello as ServerHello,
    SharedMemoryOffer as SharedMemoryOffer,
    SlotDescriptor as SlotDescriptor,
    StoreContext as StoreContext,
    WorkerRegistration as WorkerRegistration,
)
from .operations import (
    ABANDON_STORE as ABANDON_STORE,
    CLEAR as CLEAR,
    COMMIT_RETRIEVE as COMMIT_RETRIEVE,
    COMMIT_STORE as COMMIT_STORE,
    END_SESSION as END_SESSION,
    FREE_LOOKUP_LOCKS as FREE_LOOKUP_LOCKS,
    GET_CHUNK_SIZE as GET_CHUNK_SIZE,
    GET_EXPERIMENTAL as GET_EXPERIMENTAL,
    HELLO as HELLO,
    LOOKUP as LOOKUP,
    NOOP as NOOP,
    Operation as Operation,
    PING as PING,
    PREPARE_RETRIEVE as PREPARE_RETRIEVE,
    PREPARE_STORE as PREPARE_STORE,
    QUERY_PREFETCH_STATUS as QUERY_PREFETCH_STATUS,
    REGISTER_ENGINE_DRIVEN as REGISTER_ENGINE_DRIVEN,
    REGISTER_WORKER as REGISTER_WORKER,
    REPORT_BLOCK_ALLOCATION as REPORT_BLOCK_ALLOCATION,
    UNREGISTER_ENGINE_DRIVEN as UNREGISTER_ENGINE_DRIVEN,
    WAIT_PREFETCH_STATUS as WAIT_PREFETCH_STATUS,
)
from .prompt_tokens import PromptTokens as PromptTokens

__version__: str

__all__: list[str]
