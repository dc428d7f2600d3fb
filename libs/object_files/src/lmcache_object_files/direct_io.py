"""Whether a file system takes O_DIRECT."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Final

DIRECT_ALIGN: Final = 4096
"""What O_DIRECT is used with: borrowed buffers are aligned to no more, and no common device asks for more."""


def accepts_direct(directory: Path) -> bool:
    """Does the file system of this directory take O_DIRECT, with our alignment?  Raises OSError for any other fault."""
    probe = str(directory / "probe.tmp")
    page = mmap.mmap(-1, DIRECT_ALIGN)
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        try:
            return os.pwrite(fd, page, 0) == DIRECT_ALIGN and os.preadv(fd, [page], 0) == DIRECT_ALIGN
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        page.close()
        if os.path.exists(probe):
            os.unlink(probe)
