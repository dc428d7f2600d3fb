"""Chunks that callers name: to bring them into L1, to pin them, to sum them up."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, FailFast, Field, model_validator

from lmcache_client.layout import ORDER_CHARS_MAX
from lmcache_http.admin_api.objects import MODEL_NAME_CHARS_MAX
from lmcache_http.models import Answer, RequestBody

TOKENS_MAX: Final = 262_144
HASHES_MAX: Final = 16_384
CHUNKS_BODY_BYTES_MAX: Final = 4 << 20
SALT_CHARS_MAX: Final = 128
WORLD_MAX: Final = 255
PIN_SECONDS_MAX: Final = 366 * 86_400.0
PIN_NAME: Final = r"^[A-Za-z0-9._:-]{1,128}$"

Token = Annotated[int, Field(ge=0, le=2**32 - 1)]
ChunkHash = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
PinName = Annotated[str, Field(pattern=PIN_NAME)]
PinSeconds = Annotated[float, Field(gt=0, le=PIN_SECONDS_MAX, allow_inf_nan=False)]
_PIN: Final[dict[str, Any]] = {
    "name": "system-prompt",
    "model_name": "m",
    "identity": "9f86d081884c7d65",
    "variant": "",
    "cache_salt": "_default",
    "objects": 4,
    "bytes": 8404992,
    "expires_in_seconds": None,
}
_PROGRESS: Final[dict[str, Any]] = {
    "request_id": "prefetch-0123456789abcdef",
    "status": "completed",
    "chunks": 4,
    "total_keys": 4,
    "found_keys": 4,
    "loaded_keys": 3,
    "pinned_keys": 0,
    "note": "",
}
_CHECKSUMS: Final[dict[str, Any]] = {
    "algorithm": "xxh3_128",
    "chunk_hashes": ["ab" * 32],
    "shards": [{"worker_id": 0, "layouts": ["cd" * 16], "checksums": ["ef" * 16]}],
}
_SELECTION: Final[dict[str, Any]] = {"model_name": "m", "world_size": 1, "token_ids": [1, 2, 3, 4]}


class ChunkLayout(RequestBody):
    """The shape of a model's chunks, where no worker has registered it: as `/status` shows it of workers."""

    kv_axis: Literal[1, 2] = Field(description="1: K and V are one; 2: they are apart.")
    layers: int = Field(ge=1, le=2**32 - 1)
    hidden: int = Field(ge=1, le=2**32 - 1, description="Heads times head size of one shard.")
    dtype: str = Field(min_length=1, max_length=32, examples=["bfloat16"])
    quantization: str = Field("", max_length=128)
    block_slots: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Slots of an engine's block, where their elements are in an order of the engine.",
    )
    order: str = Field("", max_length=ORDER_CHARS_MAX, description="The name of that order, where the worker gave one.")


class ChunkSelection(RequestBody):
    """Chunks of a model, by the prompt whose whole chunks they are, or one by one."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SELECTION]})

    model_name: str = Field(
        min_length=1,
        max_length=MODEL_NAME_CHARS_MAX,
        description="The served name, or where engines of that name do not share KV, the name that one of them sends.",
    )
    world_size: int = Field(1, ge=1, le=WORLD_MAX, description="Workers that share the model.")
    cache_salt: str = Field("", max_length=SALT_CHARS_MAX, description="The tenant; `_default` is the empty salt, too.")
    token_ids: Annotated[list[Token] | None, FailFast()] = Field(
        None, max_length=TOKENS_MAX, description="A prompt: chunk after chunk, as far as they are there."
    )
    chunk_hashes: Annotated[list[ChunkHash] | None, FailFast()] = Field(
        None, max_length=HASHES_MAX, description="Any chunks, in hex digits, in any order."
    )
    layout: ChunkLayout | None = Field(
        None, description="Needed where no worker of the model is registered: the shape of its chunks."
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.token_ids is None) is (self.chunk_hashes is None):
            raise ValueError("give exactly one of 'token_ids' and 'chunk_hashes'")
        return self


class OrderPrefetch(ChunkSelection):
    """What is to come from L2 into L1, and whether it is to be pinned there."""

    source_tier: Literal["l2"] = "l2"
    target_tier: Literal["l1"] = "l1"
    pin: bool = Field(False, description="Pin what comes, under `name`.")
    name: PinName | None = None
    ttl_seconds: PinSeconds | None = Field(None, description="How long the pin stays; none: until it is removed.")

    @model_validator(mode="after")
    def _a_pin_has_a_name(self) -> Self:
        if self.pin is not (self.name is not None):
            raise ValueError("'pin' and 'name' belong together: give both or none")
        if self.ttl_seconds is not None and not self.pin:
            raise ValueError("'ttl_seconds' is that of a pin: give 'pin' and 'name', too, or leave it out")
        return self


class PrefetchSubmitted(Answer):
    """`status` is submitted, or noop where nothing was named."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"request_id": "prefetch-0123456789abcdef", "chunks": 4, "status": "submitted"}]
        }
    )

    request_id: str | None
    chunks: int
    status: str


class PrefetchProgress(Answer):
    """`status` is pending, completed or cancelled.  Keys are shards of chunks; `found_keys` counts those that are in L1,
    `loaded_keys` those of them that came from L2."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PROGRESS]})

    request_id: str
    status: str
    chunks: int
    total_keys: int
    found_keys: int
    loaded_keys: int
    pinned_keys: int
    note: str
    """Why not everything was pinned."""


class PinChunks(ChunkSelection):
    """What L1 has of these is to stay there.  A name that is in use is added to, and has this time to live from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_SELECTION, "name": "system-prompt"}]})

    name: PinName
    ttl_seconds: PinSeconds | None = Field(None, description="How long; none: until it is removed.")


class ChunksPinned(Answer):
    """Of `total_chunks`, every shard of `chunks` is pinned now; `objects` counts shards of chunks."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "system-prompt", "chunks": 4, "total_chunks": 5, "objects": 4}]}
    )

    name: str
    chunks: int
    total_chunks: int
    objects: int


class Unpin(RequestBody):
    """The pin to remove."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "system-prompt"}]})

    name: PinName


class PinAnswer(Answer):
    """A pin.  `bytes` counts what other pins hold, too, with each of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [_PIN]})

    name: str
    model_name: str
    """As users know it."""
    identity: str = ""
    """What decides its KV bytes, in 16 hex digits; empty: its engines do not say."""
    variant: str = ""
    """What requests add to that, an adapter; empty: nothing."""
    cache_salt: str
    objects: int
    bytes: int
    expires_in_seconds: float | None


class PinsAnswer(Answer):
    """All pins.  What several of them hold counts once in `pinned_bytes`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"pins": [_PIN], "objects": 4, "pinned_bytes": 8404992, "pinned_bytes_max": 1342177280}]
        }
    )

    pins: list[PinAnswer]
    objects: int
    pinned_bytes: int
    pinned_bytes_max: int


class SumChunks(ChunkSelection):
    """Chunks whose bytes in L1 are to be summed up."""


class ShardChecksums(Answer):
    """One for each chunk; null where L1 does not have it."""

    worker_id: int
    layouts: list[str]
    checksums: list[str | None]


class Checksums(Answer):
    """The xxh3-128 of payloads, as object headers have it."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CHECKSUMS]})

    algorithm: str = "xxh3_128"
    chunk_hashes: list[str]
    shards: list[ShardChecksums]
