"""The server's memory, mapped into this process."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lmcache_client.errors import LMCacheError, ProtocolError, ResourceError
from lmcache_client.messages import SlotDescriptor
from lmcache_client.prefault import Prefault

SHM_ROOT: Final = Path("/dev/shm")
_NAME: Final = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.\-]{0,200})")
_BLOCK_BYTES: Final = 512


class L1Segment:
    """A segment of `/dev/shm`, readable and writable.  Descriptors that the server gives are only followed inside of it.

    Stays valid memory when the server dies: its name goes, the pages stay until they are unmapped.  Any thread may read its
    properties; what is written where is between the caller and the server.  Close it when nothing uses it any more.
    """

    def __init__(self, name: str, size_bytes: int) -> None:
        """Map the segment that a SharedMemoryOffer or a ServerHello names.  Raises ProtocolError for a name that is not a
        file of `/dev/shm`, and ResourceError when it is not there, not ours, or not as large as `size_bytes`."""
        found = _NAME.fullmatch(name)
        if not found:
            raise ProtocolError(f"shared memory {name[:60]!r}: a name of one file in {SHM_ROOT} belongs there")
        self.name = found[1]
        self._descriptor = _open(SHM_ROOT / self.name, size_bytes)
        try:
            self._mapping = mmap.mmap(self._descriptor, size_bytes)
        except (OSError, ValueError, OverflowError) as error:  # the latter: cut short meanwhile, or larger than memory
            os.close(self._descriptor)
            raise ResourceError(f"{SHM_ROOT / self.name}: {size_bytes} bytes cannot be mapped: {error}") from None
        self.size_bytes = size_bytes
        anchor = ctypes.c_char.from_buffer(self._mapping)
        self._address = ctypes.addressof(anchor)
        del anchor
        self._view = memoryview(self._mapping)
        self._prefault = Prefault(self._address, size_bytes)
        self._closed = False

    def close(self) -> None:
        """Unmap it.  Existing views keep the mapping; there are no new ones.  May be called again."""
        if self._closed:
            return
        self._closed = True
        self._prefault.end()
        self._view.release()
        os.close(self._descriptor)
        try:
            self._mapping.close()
        except BufferError:
            pass  # unmapped with the last view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> int:
        """Of its first byte in this process.  Raises LMCacheError when it is closed, as everything below does."""
        self._check_open()
        return self._address

    @property
    def view(self) -> memoryview:
        """All of it, writable.  A view of the caller's own, which may be released."""
        self._check_open()
        return self._view[:]

    def payload(self, slot: SlotDescriptor) -> memoryview:
        """The bytes of a slot, writable.  Raises ProtocolError when they do not lie in the segment."""
        self._check_inside(slot)
        return self._view[slot.offset : slot.offset + slot.length]

    def payload_address(self, slot: SlotDescriptor) -> int:
        """Where the bytes of a slot begin in this process.  Raises ProtocolError when they do not lie in the segment."""
        self._check_inside(slot)
        return self._address + slot.offset

    @property
    def allocated_bytes(self) -> int:
        """How much of it has memory by now; a server allocates from the front.  One system call."""
        self._check_open()
        return min(os.fstat(self._descriptor).st_blocks * _BLOCK_BYTES, self.size_bytes)

    @property
    def prefaulted_bytes(self) -> int:
        """What `prefault` has mapped so far."""
        return self._prefault.done_bytes

    def prefault(self, offset: int, length: int) -> None:
        """Have this stretch mapped on another thread, so that its later users do not wait for page faults.  Returns at once.
        What the server has not allocated is allocated by this, so ask for no more than will be used soon."""
        self._check_open()
        self._prefault.ask(offset, length)

    def _check_open(self) -> None:
        if self._closed:
            raise LMCacheError(f"shared memory '{self.name}' is closed; register again to map it again")

    def _check_inside(self, slot: SlotDescriptor) -> None:
        self._check_open()
        if slot.offset < 0 or slot.length < 0 or slot.offset + slot.length > self.size_bytes:
            raise ProtocolError(
                f"slot of {slot.length} bytes at {slot.offset}: outside of '{self.name}', which has {self.size_bytes}"
            )


def _open(path: Path, size_bytes: int) -> int:
    """A descriptor of a regular file of this user that is large enough and that no other user can truncate."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ResourceError(
            f"{path}: {error.strerror}; server and engine must share /dev/shm (containers: the same IPC namespace) and "
            "run as the same user"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        fault = "it is not a file"
    elif found.st_uid != os.geteuid():
        fault = f"it belongs to user {found.st_uid}; run server and engine as the same user"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        fault = "other users may write to it; its server must make it with mode 600"
    elif not 0 < size_bytes <= found.st_size:
        fault = f"it has {found.st_size} bytes, where {size_bytes} were offered"
    else:
        return descriptor
    os.close(descriptor)
    raise ResourceError(f"{path}: {fault}")
