"""Frames of EngineKeys: reading them, and how they begin and end, so that what was read before need not be read again.

Clients encode a key's fields in one order: model, world and worker stand before the tokens, range, request and tenant
behind them.  Nothing here relies on that; a frame in another order is only read without a short cut.
"""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import msgspec

from lmcache_client.messages import EngineKey
from lmcache_client.tokens import TokenSequence, array_header

Frame = bytes | memoryview

HEAD_BYTES_MAX: Final = 512
"""Longest head that is looked for: room for a long model name."""
_TAIL_BYTES_MAX: Final = 4096
_TOKENS_NAME: Final = b"\xa9token_ids"
_START_NAME: Final = b"\xa5start"


class _Tail(msgspec.Struct):
    cache_salt: str = ""


_decode_tail = msgspec.msgpack.Decoder(_Tail).decode


def _encoded_key() -> Any:
    """EngineKey with its tokens as msgspec can read them."""
    kinds = get_type_hints(EngineKey)
    defaults = dict(zip(reversed(EngineKey.__struct_fields__), reversed(EngineKey.__struct_defaults__), strict=False))
    fields: list[Any] = []
    for name in EngineKey.__struct_fields__:
        kind = msgspec.Raw if name == "token_ids" else kinds[name]
        fields.append((name, kind, defaults[name]) if name in defaults else (name, kind))
    return msgspec.defstruct("EngineKey", fields)


decode_fields = msgspec.msgpack.Decoder(_encoded_key()).decode
"""A frame to a struct with the fields of an EngineKey, `token_ids` being a msgspec.Raw that lies in the frame."""


def read_key(frame: Frame) -> EngineKey:
    """The key in a frame.  Raises ProtocolError, or ValueError and RecursionError as msgspec does."""
    fields = decode_fields(frame)
    array = memoryview(fields.token_ids)
    count, header = array_header(array)
    return with_tokens(fields, TokenSequence(count, array[header:], fields.cache_salt))


def with_tokens(fields: Any, tokens: TokenSequence) -> EngineKey:
    """The EngineKey of what `decode_fields` gave, with these tokens."""
    return EngineKey(
        fields.model_name,
        fields.world_size,
        fields.worker_id,
        tokens,
        fields.start,
        fields.end,
        fields.request_id,
        fields.cache_salt,
        fields.request_configs,
        fields.num_kv_readers,
    )


def find_head(frame: memoryview) -> bytes | None:
    """The frame up to its first `token_ids`, that name included, if it is near the start.  `fields_behind` says whether
    that is the name of the field."""
    start = bytes(frame[:HEAD_BYTES_MAX])
    at = start.find(_TOKENS_NAME)
    return None if at < 0 else start[: at + len(_TOKENS_NAME)]


def fields_behind(head: bytes) -> int | None:
    """How many fields follow the tokens in every frame that begins with this head, if what `find_head` gave ends with a
    name of the map that it begins.  None when it does not, and for heads that a short cut need not know."""
    if not 0x80 <= head[0] <= 0x8F:
        return None
    at, left = 1, head[0] & 0x0F
    while at < len(head) and 0xA0 <= head[at] <= 0xBF:  # a name of less than 32 bytes
        name = head[at : at + 1 + (head[at] & 0x1F)]
        at += len(name)
        left -= 1
        if name == _TOKENS_NAME:
            return left if at == len(head) and left >= 0 else None
        at += _scalar_bytes(head[at : at + 3]) or len(head)
    return None


def guess_salt(frame: memoryview, fields: int) -> str | None:
    """The tenant that this number of fields at the end of the frame name, the first of them being `start`.  To be checked
    against the key; None: no guess.

    A user who chooses only the prompt and the texts of a request cannot have it looked for among another tenant's: no piece
    of the tokens reads as fields, and what comes behind the real `start` is not looked at.  (It would take several KiB of
    request_configs, to hide the real one; and then all it shows is how a comparison adds to a whole decoding.)"""
    tail = bytes(frame[-_TAIL_BYTES_MAX:])
    at = tail.find(_START_NAME)
    if at < 0:
        return None
    try:
        salt: str = _decode_tail(bytes((0x80 | fields,)) + tail[at:]).cache_salt
    except (ValueError, RecursionError):
        return None
    return salt


def names_tokens(data: bytes, start: int) -> bool:
    """May this part of a frame give the tokens once more, as maps can?"""
    return data.find(_TOKENS_NAME[1:], start) >= 0


def _scalar_bytes(data: bytes) -> int | None:
    """Bytes of the number, nil or text of up to 64 KiB that `data` starts with; None for anything else."""
    lead = data[0] if data else 0xC1
    if lead < 0x80 or lead >= 0xE0 or lead == 0xC0:
        return 1
    if 0xA0 <= lead <= 0xBF:
        return 1 + (lead & 0x1F)
    if 0xCC <= lead <= 0xD3:
        return 1 + (1 << (lead & 3))
    if lead == 0xD9 and len(data) > 1:
        return 2 + data[1]
    if lead == 0xDA and len(data) > 2:
        return 3 + int.from_bytes(data[1:3], "big")
    return None
