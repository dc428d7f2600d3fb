"""Settings of the `raw_block` adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from lmcache_core import HEADER_BYTES, PluginSettings

BLOCK_ALIGN_MAX: Final = 65_536
Workers = Annotated[int, Field(ge=1, le=256)]


class RawBlockSettings(PluginSettings):
    """Which device, how it is cut into slots, and how its bytes are moved."""

    device_path: Annotated[Path, Field(description="Block device or pre-sized file; owned by one running server.")]
    slot_bytes: Annotated[
        int,
        Field(
            gt=0,
            description="Size of a slot, which holds one object of any length up to it. A multiple of block_align.",
        ),
    ]
    capacity_bytes: Annotated[
        int, Field(ge=0, description="Bytes of the device that are used, metadata included; 0 means all of it.")
    ] = 0
    use_odirect: Annotated[
        bool, Field(description="Bypass the page cache where the device allows it; else a warning, and buffered.")
    ] = True
    block_align: Annotated[
        int, Field(ge=512, le=BLOCK_ALIGN_MAX, description="Alignment of all transfers; a power of two.")
    ] = 4096
    header_bytes: Annotated[
        int, Field(ge=HEADER_BYTES, description="Bytes of each slot in front of the payload, header page included.")
    ] = HEADER_BYTES
    meta_total_bytes: Annotated[
        int, Field(gt=0, description="Bytes in front of the slots for superblocks and two checkpoints of the index.")
    ] = 256 * 2**20
    meta_magic: Annotated[
        str, Field(min_length=1, max_length=64, description="Name of what the device holds; another one is refused.")
    ] = "lmcache"
    meta_version: Annotated[
        int, Field(ge=0, lt=2**31, description="Version of what the device holds; another one is refused.")
    ] = 1
    meta_checkpoint_interval_sec: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds between two checkpoints, where something has changed.")
    ] = 60.0
    meta_idle_quiet_ms: Annotated[
        int, Field(ge=0, description="A checkpoint that is due waits for such a pause, at most one interval long.")
    ] = 100
    meta_enable_periodic: Annotated[
        bool, Field(description="Off: checkpoints are written only when the server stops.")
    ] = True
    meta_verify_on_load: Annotated[
        bool, Field(description="Read the header of every slot at each start, also after a stop in good order.")
    ] = False
    load_checkpoint_on_init: Annotated[
        bool, Field(description="Off: forget, for good, what the device holds, and start empty.")
    ] = True
    enable_zero_copy: Annotated[
        bool, Field(description="Move bytes between L1 and the device directly; off: through memory of the adapter.")
    ] = True
    io_engine: Annotated[
        Literal["posix", "threads", "io_uring", "auto"],
        Field(description="Who moves bytes: posix or threads (worker threads), io_uring, or auto for the better one."),
    ] = "posix"
    iouring_queue_depth: Annotated[
        int, Field(ge=1, le=4096, description="Transfers that are under way at the same time with io_uring.")
    ] = 256
    num_store_workers: Annotated[Workers, Field(description="Threads for stores; see num_load_workers.")] = 4
    num_lookup_workers: Annotated[Workers, Field(description="Threads for headers; see num_load_workers.")] = 1
    num_load_workers: Annotated[
        Workers,
        Field(description="Threads for loads. The threads of the three are shared: who waits is served, loads first."),
    ] = 8
    fsync: Annotated[bool, Field(description="Answer a store or a deletion only when it is on the medium.")] = False
    overwrite_device: Annotated[
        bool, Field(description="Discard the content of a device that is not empty, or was made with other settings.")
    ] = False
    persist_enabled: Annotated[bool, Field(description="Must be true: what is stored stays on the device.")] = True

    @field_validator("device_path", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if isinstance(value, str) and not value.strip():
            raise ValueError("must name a block device or a file")
        return value

    @field_validator("meta_magic", mode="before")
    @classmethod
    def _number_as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("block_align")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two, such as 512 or 4096")
        return value

    @field_validator("persist_enabled")
    @classmethod
    def _always(cls, value: bool) -> bool:
        if not value:
            raise ValueError(
                "must stay true, this adapter keeps what it stored; use load_checkpoint_on_init: false to start empty"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> RawBlockSettings:
        block = max(self.block_align, HEADER_BYTES)
        units = {"slot_bytes": self.block_align, "header_bytes": HEADER_BYTES, "meta_total_bytes": block}
        for name, unit in units.items():
            if left := getattr(self, name) % unit:
                raise ValueError(f"{name} must be a multiple of {unit} bytes, it is {left} bytes more than one")
        if self.slot_bytes <= self.header_bytes:
            raise ValueError(
                f"slot_bytes {self.slot_bytes} leaves no room behind header_bytes {self.header_bytes}; make it larger"
            )
        if self.capacity_bytes and self.capacity_bytes < self.meta_total_bytes + self.slot_bytes:
            raise ValueError(
                f"capacity_bytes {self.capacity_bytes} has no room for one slot behind meta_total_bytes "
                f"{self.meta_total_bytes}; make it at least {self.meta_total_bytes + self.slot_bytes}, or that smaller"
            )
        return self
