"""The metadata in front of the slots, of a descriptor."""

from __future__ import annotations

import errno
import os


class FileRegion:
    """Through the page cache: the descriptor is to be one without O_DIRECT, and stays its owner's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        view, at = memoryview(data), 0
        while at < length:
            got = os.preadv(self._fd, [view[at:]], offset + at)
            if not got:
                raise OSError(errno.ENODATA, f"the metadata ends at byte {offset + at}")
            at += got
        return bytes(data)

    def write(self, offset: int, data: bytes) -> None:
        view, at = memoryview(data), 0
        while at < len(view):
            at += os.pwrite(self._fd, view[at:], offset + at)

    def sync(self) -> None:
        os.fdatasync(self._fd)
