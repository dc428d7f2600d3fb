"""Messages of the lm:// protocol.

A request is nine native 32-bit integers (command, length, format, dtype, location, four dimensions) and a key of 150 bytes,
padded with spaces; behind that of a PUT comes the value.  An answer is nine integers (200 or 400, length, format, dtype, four
dimensions, location); behind that of a GET that found something comes the value.  A PUT is not answered.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from lmcache_core import ObjectKey, ProtocolError

KEY_BYTES: Final = 150
LENGTH_MAX: Final = 2**31 - 1
_REQUEST: Final = struct.Struct(f"=9i{KEY_BYTES}s")
_ANSWER: Final = struct.Struct("=9i")
REQUEST_BYTES: Final = _REQUEST.size
ANSWER_BYTES: Final = _ANSWER.size
FOUND: Final = 200
NOT_FOUND: Final = 400
ANY_LOCATION: Final = 0

_KEY: Final = re.compile(r"[^\x00-\x1f\x7f]+@\d+@\d+@-?[0-9a-f]+@[A-Za-z0-9_.]+(?:@[^\x00-\x1f\x7f]*)?")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._/+:#%-]")
_DIGEST_BYTES: Final = 8


class Verb(IntEnum):
    """The commands of a request."""

    PUT = 1
    GET = 2
    EXIST = 3
    HEALTH = 5


class Form(NamedTuple):
    """What a value is to its writer.  A store keeps it and gives it back."""

    format: int
    dtype: int
    dimensions: tuple[int, int, int, int]


NO_VALUE: Final = Form(1, 2, (0, 0, 0, 0))
"""Of messages without a value, as the public client and store have it."""
_BYTES_FORMAT: Final = 5
_UINT8: Final = 6


def bytes_form(length: int) -> Form:
    """Of a value that is bytes and no tensor."""
    return Form(_BYTES_FORMAT, _UINT8, (length, 0, 0, 0))


class Request(NamedTuple):
    """What a client asks."""

    verb: Verb
    key: bytes
    """Without the padding."""
    length: int = 0
    """Of a PUT: bytes of the value."""
    form: Form = NO_VALUE
    location: int = ANY_LOCATION


class Answer(NamedTuple):
    """What a store answers to anything but a PUT."""

    found: bool
    length: int = 0
    form: Form = NO_VALUE


def pack_request(request: Request) -> bytes:
    """Raises ValueError for a key that is too long."""
    if len(request.key) > KEY_BYTES:
        raise ValueError(f"a key of {len(request.key)} bytes; at most {KEY_BYTES} fit")
    form = request.form
    return _REQUEST.pack(
        request.verb, request.length, form.format, form.dtype, request.location, *form.dimensions, request.key.ljust(KEY_BYTES)
    )  # fmt: skip


def parse_request(data: bytes | bytearray | memoryview) -> Request:
    """Raises ProtocolError for a command, a length or a key that cannot be."""
    verb, length, kind, dtype, location, *dimensions, key = _REQUEST.unpack(data)
    if verb not in Verb.__members__.values():
        raise ProtocolError(f"command {verb}; known are 1, 2, 3 and 5")
    if length < 0:
        raise ProtocolError(f"a length of {length}")
    key = key.rstrip(b" ")
    if verb != Verb.HEALTH and not is_key(key):
        raise ProtocolError(f"the key {key[:KEY_BYTES]!r}, which is not model@world@worker@hash@dtype")
    return Request(Verb(verb), key, length, Form(kind, dtype, tuple(dimensions)), location)


def is_key(key: bytes) -> bool:
    """Is it `model@world@worker@hash@dtype`, with tags behind it or none?"""
    try:
        return _KEY.fullmatch(key.decode()) is not None
    except UnicodeDecodeError:
        return False


def pack_answer(answer: Answer) -> bytes:
    form = answer.form
    code = FOUND if answer.found else NOT_FOUND
    return _ANSWER.pack(code, answer.length, form.format, form.dtype, *form.dimensions, ANY_LOCATION)


def parse_answer(data: bytes | bytearray | memoryview) -> Answer:
    """Raises ProtocolError for what no store of this protocol answers."""
    code, length, kind, dtype, *dimensions, _ = _ANSWER.unpack(data)
    if code not in (FOUND, NOT_FOUND) or length < 0 or (code == NOT_FOUND and length):
        raise ProtocolError(f"an answer with code {code} and a length of {length}")
    return Answer(code == FOUND, length, Form(kind, dtype, tuple(dimensions)))


def key_of(key: ObjectKey) -> bytes:
    """`model@world@worker@object_id@uint8`.  The object's id is made of the whole key; the rest is for people.  The name of a
    model that is too long, or has other characters than such names have, is shortened by a digest."""
    world, worker = key.space.kv_rank >> 24, key.space.kv_rank >> 16 & 0xFF
    rest = f"@{world}@{worker}@{key.object_id.hex()}@uint8"
    name = key.space.model_name
    if not name or len(name) > KEY_BYTES - len(rest) or _UNSAFE.search(name):
        digest = blake2b(name.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        name = f"{_UNSAFE.sub('-', name)[: KEY_BYTES - len(rest) - len(digest) - 1]}-{digest}"
    return (name + rest).encode()
