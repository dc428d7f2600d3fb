"""Who has a volume is said on it, where there is room for that."""

from __future__ import annotations

import errno
import os

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_object_slots import Ownership


class FailingRegion:
    """A `MetaRegion` that cannot be written."""

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self, offset: int, length: int) -> bytes:
        return bytes(length)

    def write(self, offset: int, data: bytes) -> None:
        raise OSError(self._number, os.strerror(self._number))

    def sync(self) -> None:
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_medium_is_served_without_its_owners_name(number: int, caplog: pytest.LogCaptureFixture) -> None:
    Ownership(FailingRegion(number), 8192).sign(adapter_context(BorrowedMemory(4096)))
    assert "l2 medium is full: it does not say who has it" in caplog.text


def test_a_medium_that_fails_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        Ownership(FailingRegion(errno.EIO), 8192).sign(adapter_context(BorrowedMemory(4096)))
    assert not caplog.text
