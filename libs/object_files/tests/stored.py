"""Objects in files, as an adapter stores them."""

from __future__ import annotations

import time
from pathlib import Path

from lmcache_core import HEADER_BYTES, ObjectKey, Outcome
from lmcache_core.model.object_header import seal
from lmcache_object_files import ObjectFiles


def sealed(key: ObjectKey, payload_bytes: int) -> bytes:
    run = bytearray(HEADER_BYTES + payload_bytes)
    seal(memoryview(run), key, created_ns=1)
    return bytes(run)


def store(files: ObjectFiles, key: ObjectKey, payload_bytes: int = 100) -> Outcome:
    admitted = files.admit(key, HEADER_BYTES + payload_bytes)
    if isinstance(admitted, Outcome):
        return admitted
    with admitted as pending:
        try:
            Path(pending.path).write_bytes(sealed(key, payload_bytes))
        except FileNotFoundError:
            pending.make_directory()
            Path(pending.path).write_bytes(sealed(key, payload_bytes))
        return pending.publish()


def wait_known(files: ObjectFiles) -> None:
    end = time.monotonic() + 60
    while not files.recovered:
        assert time.monotonic() < end, "the directory is not known after a minute"
        time.sleep(0.002)


def of_version(version: int, run: bytes) -> bytes:
    """As a server with another format version may have written it: our magic, and nothing else that can be relied on."""
    return run[:8] + version.to_bytes(2, "little") + bytes(reversed(run[10:]))
