"""What a recording is made of.  Each record is a msgpack array that begins with its tag.

Fields may be added at the end with a default; a change of meaning raises `format.VERSION`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    at: float
    """Seconds since the epoch."""


class Began(_Record, frozen=True, tag="B"):
    """The first record of every recording."""

    level: str
    boot_id: str
    server_version: str
    chunk_tokens: int


class Lookup(_Record, frozen=True, tag="L"):
    """The chunks that a request asks for.  Each hash is recorded once: see `hash_tree`."""

    request: str
    model: str
    salt: str
    world_size: int
    prompt_tokens: int
    known: int
    """Number of the chunk up to which its prefix was recorded before; 0: nothing of it was."""
    more: bytes
    """The hashes behind it, 32 bytes each; they get the next numbers."""


class Answer(_Record, frozen=True, tag="A"):
    """What was there of them."""

    request: str
    requested: int
    hits: int
    l2_hits: int
    seconds: float


class Stored(_Record, frozen=True, tag="S"):
    request: str
    model: str
    salt: str
    kv_rank: int
    first_chunk: int
    chunks: int
    payload_bytes: int
    seconds: float


class Retrieved(_Record, frozen=True, tag="R"):
    request: str
    model: str
    salt: str
    kv_rank: int
    first_chunk: int
    chunks: int
    payload_bytes: int
    seconds: float


class Ended(_Record, frozen=True, tag="E"):
    request: str


class EventRecord(_Record, frozen=True, tag="T"):
    """An event as it is, where all of them are recorded."""

    event: str
    fields: dict[str, Any]


class Lost(_Record, frozen=True, tag="X"):
    """Number of records that are missing here.  Hashes and their numbers restart after it."""

    records: int


class Closed(_Record, frozen=True, tag="C"):
    """The recording ended in order."""


Record = Began | Lookup | Answer | Stored | Retrieved | Ended | EventRecord | Lost | Closed
