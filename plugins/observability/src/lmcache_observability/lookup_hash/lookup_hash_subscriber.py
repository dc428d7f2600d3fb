"""The subscriber `lookup_hash`: one JSON line for each lookup, as cache simulators read it."""

from __future__ import annotations

import json
from typing import Any, Final

from lmcache_core import LookupHashes, ResourceError, ServerView, Subscriber, Subscriptions
from lmcache_observability.lookup_hash.rotating_files import RotatingFiles
from lmcache_observability.lookup_hash.settings import LookupHashSettings
from lmcache_observability.shown_salt import SaltStyle, shown_salt

PREFIX: Final = "lookup_hashes"
HASH_BYTES: Final = 32
_GATHERED_MAX: Final = 1 << 20
"""Bytes that are gathered within a batch."""


class LookupHashSubscriber(Subscriber):
    """Lines are gathered while a batch is delivered, and written at its end."""

    def __init__(self, settings: LookupHashSettings, files: RotatingFiles) -> None:
        self._settings = settings
        self._files = files
        self._chunk_tokens = 0
        self._lines: list[bytes] = []
        self._gathered = 0

    def subscriptions(self) -> Subscriptions:
        return {LookupHashes: self._looked_up}

    def begin(self, server: ServerView) -> None:
        self._chunk_tokens = server.info.chunk_tokens

    def batch_done(self) -> None:
        if self._lines:
            self._files.write(b"".join(self._lines), len(self._lines))
            self._lines.clear()
            self._gathered = 0

    def close(self) -> None:
        self.batch_done()
        self._files.close()

    def _looked_up(self, event: LookupHashes) -> None:
        line = line_of(event, self._chunk_tokens, self._settings.salts)
        self._lines.append(line)
        self._gathered += len(line)
        if self._gathered > _GATHERED_MAX:
            self.batch_done()


def line_of(event: LookupHashes, chunk_tokens: int, salts: SaltStyle) -> bytes:
    """Ends with a line break, and holds no other, whatever the event says."""
    line: dict[str, Any] = {
        "timestamp": event.at,
        "request_id": event.request_id,
        "model_name": event.model_name,
        "cache_salt": shown_salt(event.cache_salt, salts),
        "world_size": event.world_size,
        "chunk_size": chunk_tokens,
        "seq_len": event.prompt_tokens,
    }
    about = json.dumps(line, separators=(",", ":"))
    return f'{about[:-1]},"chunk_hashes":{_words(event.chunk_hashes)}}}\n'.encode()


def _words(chunk_hashes: bytes) -> str:
    """A JSON list, `0x` and 64 hexadecimal digits for each; by hand, because there can be thousands."""
    digits = chunk_hashes.hex(",", -HASH_BYTES)
    return '["0x' + digits.replace(",", '","0x') + '"]' if digits else "[]"


def open_lookup_hash(settings: LookupHashSettings) -> Subscriber:
    """Raises ResourceError where the folder cannot be written to."""
    files = RotatingFiles(
        settings.dir, PREFIX, settings.rotation_interval, settings.rotation_max_size, settings.max_files
    )
    try:
        files.prepare()
    except OSError as error:
        raise ResourceError(
            f"--lookup-hash-log-dir {settings.dir}: cannot be written to: {error.strerror or error}"
        ) from None
    return LookupHashSubscriber(settings, files)
