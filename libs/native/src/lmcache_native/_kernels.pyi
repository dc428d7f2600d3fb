from collections.abc import Iterable, Sequence
from typing import Final

from typing_extensions import Buffer

KERNEL_ABI: Final[int]
PAGE_COPY_ABI: Final[int]
ROW_MOVE_ABI: Final[int]
CHUNK_TABLE_ABI: Final[int]
GATHER: Final[int]
SCATTER: Final[int]
FLOAT32: Final[int]
BFLOAT16: Final[int]
FLOAT16: Final[int]

def copy_pages(
    direction: int,
    bases: Buffer,
    blocks: Buffer,
    objects: Buffer,
    kv_axis: int,
    layers: int,
    first_layer: int,
    end_layer: int,
    slots_per_block: int,
    heads: int,
    head_bytes: int,
    block_stride: int,
    slot_stride: int,
    head_stride: int,
    skip_slots: int,
    threads: int,
) -> int:
    """Copies pages into chunk objects (`direction` GATHER, 0) or back (SCATTER, 1); returns the bytes that it moved.

    `bases` (uint64): for each of the kv_axis * layers planes, the address of slot 0, head 0 of block 0.  `blocks` (int64):
    block ids, as many for each object; -1 is left out.  `objects` (uint64): where each object begins; in it, head h of
    slot s of a plane lies at ((plane * slots + s) * heads + h) * head_bytes.  Strides are bytes.  The first `skip_slots`
    slots of the first object are left out.  The caller answers for the addresses: ids are not known to be within the pages.

    Up to `threads` threads share a copy that is large enough.  The GIL is released while bytes move, and other threads may
    copy meanwhile.  ValueError: arguments that cannot be; nothing has moved then.  OSError with errno EFAULT: memory vanished
    under the copy, and some of it is done.
    """

def read_rows(
    bases: Buffer,
    blocks: Buffer,
    object: Buffer,
    kv_axis: int,
    layers: int,
    first_layer: int,
    end_layer: int,
    slots_per_block: int,
    heads: int,
    head_bytes: int,
    block_stride: int,
    slot_stride: int,
    head_stride: int,
    page_blocks: int,
    object_slots: int,
    first_slot: int,
    count: int,
    first_page_slot: int,
    element: int,
    key_slots: Buffer,
    key_elements: Buffer,
    value_slots: Buffer,
    value_elements: Buffer,
    pairs: Buffer,
    turns: Buffer,
) -> int:
    """Writes `count` slots of a chunk object, from `first_slot` on, into pages, keys turned; returns the bytes that it wrote.

    Pages and objects are those of `copy_pages`, of one object of `object_slots` slots at the address that `object` (uint64)
    has.  `blocks` (int64): ids, all below `page_blocks`, of the blocks that are written; the first slot goes to slot
    `first_page_slot` of the first.  `element`: FLOAT32, BFLOAT16 or FLOAT16.  Element e of slot s of any head of K is
    `key_slots[s] + key_elements[e]` (uint64) elements behind the beginning of that head's part of a block, which is
    `[slot][element of a row]`; the same for V, in the same plane where kv_axis is 1.  `pairs` (int64): for each layer from
    first_layer to end_layer, how many pairs of K's first elements are turned; negative: neighbours are pairs, not halves.
    `turns` (float32): for each of these layers the cosines of its pairs, and then their sines.

    Pairs are turned in float32 and rounded once; all processors write the same bits.  Errors and the GIL are as for
    `copy_pages`; the object and the pages may not overlap, and no two elements may have one place.
    """

def write_rows(
    bases: Buffer,
    blocks: Buffer,
    object: Buffer,
    kv_axis: int,
    layers: int,
    first_layer: int,
    end_layer: int,
    slots_per_block: int,
    heads: int,
    head_bytes: int,
    block_stride: int,
    slot_stride: int,
    head_stride: int,
    page_blocks: int,
    object_slots: int,
    first_slot: int,
    count: int,
    first_page_slot: int,
    element: int,
    key_slots: Buffer,
    key_elements: Buffer,
    value_slots: Buffer,
    value_elements: Buffer,
    pairs: Buffer,
    turns: Buffer,
) -> int:
    """The reverse of `read_rows`: writes slots of the object from those of the pages, keys turned; returns the bytes written.

    The arguments are the same, but that `blocks` are read, from slot `first_page_slot` of the first on.  Other slots of the
    object stay as they are.
    """

def read_prompt(
    frame: bytes | memoryview, offset: int, count: int, chunk_tokens: int, previous: bytes, carry: bytes
) -> tuple[list[bytes], list[int], bytes, int]: ...

class SlotTable:
    def __init__(self) -> None: ...
    @property
    def held(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def findable(self) -> int: ...
    def __len__(self) -> int: ...
    def grow(self, count: int) -> None: ...
    def acquire(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]: ...
    def acquire_all(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int] | None: ...
    def contains(self, space: int, chunk_hash: bytes) -> bool: ...
    def hold(self, slots: Sequence[int]) -> None: ...
    def release(self, slots: Sequence[int]) -> list[int]: ...
    def release_from(self, held: list[int], slots: Sequence[int]) -> tuple[list[int], list[int]]: ...
    def absent(self, space: int, chunk_hashes: Sequence[bytes]) -> list[int]: ...
    def begin(self, space: int, chunk_hashes: Sequence[bytes], slots: Sequence[int]) -> None: ...
    def publish(self, slots: Sequence[int], holds: int, temporary: bool) -> None: ...
    def may_evict(self, slot: int) -> bool: ...
    def evictable(self, slots: Iterable[int]) -> list[int]: ...
    def mark_temporary(self, slots: Sequence[int]) -> list[int]: ...
    def hide(self, slots: Sequence[int]) -> None: ...
    def remove(self, slots: Sequence[int]) -> dict[int, int]: ...
    def state(self, slot: int) -> tuple[int, bytes, int, bool, bool] | None: ...
    def holds(self, slot: int) -> int: ...
    def key(self, slot: int) -> tuple[int, bytes]: ...
    def ready(self, begin: int, end: int) -> tuple[list[int], list[int]]: ...

class Recency:
    def __init__(self) -> None: ...
    def insert(self, slots: Sequence[int], group: int) -> None: ...
    def touch(self, slots: Sequence[int]) -> None: ...
    def remove(self, slots: Sequence[int]) -> None: ...
    def group(self, slot: int) -> int: ...
    def scan(self, group: int, position: int, steps: int) -> tuple[list[int], int]: ...

class ChunkTable:
    def __init__(self, chunk_tokens: int, chunks_max: int, multiplier: int, key: bytes) -> None: ...
    def __len__(self) -> int: ...
    def add(self, space: int, mask: int, tokens: Sequence[int], chunk_hash: bytes, place: int, parent: int) -> int: ...
    def match(
        self, space: int, mask: int, tokens: Sequence[int], stride: int
    ) -> list[tuple[int, bytes, int, int, int, bool]]: ...
    def note(self, entry: int, chunk_hash: bytes, is_there: bool) -> None: ...
