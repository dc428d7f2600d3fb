"""A stand-in for L1: memory to lend to an adapter, and the context that it is opened with."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import uuid
from pathlib import Path

from blake3 import blake3

from lmcache_core.contracts.clock import Clock, SystemClock
from lmcache_core.contracts.events import Event
from lmcache_core.contracts.l1_memory import BorrowedBuffer, MemoryRegion
from lmcache_core.contracts.l2_adapter import AdapterContext
from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, seal

ALIGN_BYTES = 4096
SHM_ROOT = Path("/dev/shm")
UNWRITTEN = b"\xee"
_SHARED_PREFIX = "lmcache-of-tests-"
SPACE = KeySpace("acme/llama 3", 0x01000100, 0, "tenant", 256, HashChain.BLAKE3, b"layout-of-tests!")


class BorrowedMemory:
    """Memory that hands out each page once.  One thread."""

    def __init__(self, size: int = 32 * 2**20, *, shared: bool = False) -> None:
        """`shared`: a segment in /dev/shm, as L1 is by default, until `close`; otherwise anonymous memory."""
        self.path: Path | None = None
        descriptor = None
        if shared:
            _remove_left_behind()
            self.path = SHM_ROOT / f"{_SHARED_PREFIX}{os.getpid()}-{uuid.uuid4().hex}"
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor if descriptor is not None else -1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        name = self.path.name if self.path else None
        self.region = MemoryRegion(address, size, memoryview(memory), descriptor, name)
        self._next = 0

    def close(self) -> None:
        """Remove what others could find it by.  Its bytes stay as long as something here uses them."""
        if self.path is not None and self.region.descriptor is not None:
            self.path.unlink(missing_ok=True)
            os.close(self.region.descriptor)
            self.path = None

    def lend(self, length: int) -> BorrowedBuffer:
        """A buffer that is full of 0xEE, so that bytes which were not written are seen."""
        end = self._next + -(-length // ALIGN_BYTES) * ALIGN_BYTES
        if end > self.region.length:
            raise ValueError(
                f"{length} bytes are too many for a memory of {self.region.length} that has borrowed {self._next}"
            )
        buffer = BorrowedBuffer(self.region, self._next, length)
        self._next = end
        buffer.view[:] = UNWRITTEN * length
        return buffer

    def sealed(self, key: ObjectKey, payload: bytes) -> BorrowedBuffer:
        """A whole object: header page and payload."""
        buffer = self.lend(HEADER_BYTES + len(payload))
        buffer.view[HEADER_BYTES:] = payload
        seal(buffer.view, key, created_ns=1)
        return buffer


def _remove_left_behind() -> None:
    """Segments of processes that were killed: each holds memory until it is removed or the machine restarts."""
    for path in SHM_ROOT.glob(f"{_SHARED_PREFIX}*"):
        creator = path.name.removeprefix(_SHARED_PREFIX).partition("-")[0]
        if not Path("/proc", creator).exists():
            path.unlink(missing_ok=True)


class NoSubscribers:
    """Events go nowhere."""

    def publish(self, event: Event) -> None:
        pass

    def wants(self, kind: type[Event]) -> bool:
        return False


def adapter_context(
    memory: BorrowedMemory, *, boot_id: str = "", name: str = "l2", clock: Clock | None = None
) -> AdapterContext:
    """What an adapter would be opened with; a boot id of its own unless one is given."""
    return AdapterContext(
        name=name,
        instance_id="instance-of-tests",
        boot_id=boot_id or uuid.uuid4().hex,
        regions=(memory.region,),
        align_bytes=ALIGN_BYTES,
        clock=clock or SystemClock(),
        events=NoSubscribers(),
        logger=logging.getLogger(f"lmcache.l2.{name}"),
    )


def object_key(number: int, space: KeySpace = SPACE) -> ObjectKey:
    """The key that is called `number` in this test."""
    return ObjectKey(space, number.to_bytes(32, "little"))


def payload_of(number: int, size: int) -> bytes:
    """Bytes that differ from number to number, and from place to place."""
    return blake3(number.to_bytes(8, "little")).digest(size)
