"""Event handles of workers that share no process namespace: a sequence number in the memory of the signaller.

81 bytes in network order: version 1, the handle of a buffer of 4096 numbers of 8 bytes, the byte offset of one of them, and
the value that it reaches when the event has happened.  Slot 0 is never used; the value 0 has been reached from the start.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lmcache_transfer_torch.device import DeviceError

SLOTS: Final = 4096
SLOT_BYTES: Final = 8
BUFFER_BYTES: Final = SLOTS * SLOT_BYTES
VERSION: Final = 1
_FORM: Final = struct.Struct("!B64sQQ")
HANDLE_LENGTH: Final = _FORM.size


class SemaphoreHandle(NamedTuple):
    memory: bytes
    offset: int
    sequence: int

    def encode(self) -> bytes:
        return _FORM.pack(VERSION, *self)

    @classmethod
    def decode(cls, raw: bytes) -> SemaphoreHandle:
        """Raises DeviceError for what no worker of this version sends."""
        if len(raw) != HANDLE_LENGTH:
            raise DeviceError(
                f"an event handle of {len(raw)} bytes, where {HANDLE_LENGTH} are sent with isolated IPC; the engine's "
                "lmcache.mp.isolated_ipc and the server's --isolated-ipc must agree"
            )
        version, memory, offset, sequence = _FORM.unpack(raw)
        if version != VERSION:
            raise DeviceError(f"an event handle of version {version}; known is {VERSION}")
        if sequence and (offset % SLOT_BYTES or not SLOT_BYTES <= offset < BUFFER_BYTES):
            raise DeviceError(f"an event handle names byte {offset}, which is not a slot of a buffer of {SLOTS}")
        return cls(memory, offset, sequence)
