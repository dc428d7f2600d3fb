"""Keys of the engine protocol and the token ids in them, in their wire form.

Engines send the whole sequence with every request about it, and it can be long (131,072 tokens take 520 KB and 5 ms to
decode), so it stays encoded, a msgpack array of integers, until a part that is not known yet is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec

from lmcache_client.errors import ProtocolError
from lmcache_client.external_hashes import EXTERNAL_NAME, ExternalHashes

MAX_TOKENS: Final = 16 << 20
"""Longest sequence that is taken from an engine."""

PADDING: Final = 2**32 - 1
"""In a key, in place of each token that the last chunk of a prompt lacks: a tail.  No model has this token."""

_NIL: Final = 0xC0


class KnownPrefix(NamedTuple):
    """As far as a sequence was there before."""

    hashes: Sequence[bytes]
    """Of its first chunks."""
    end: int
    """Offset in the integers behind the last of those chunks."""
    same: int
    """How many bytes of the integers were read before, and are token ids."""


NOTHING_KNOWN: Final = KnownPrefix((), 0, 0)


class TokenSequence:
    """The token ids of a request, as they came.  Never changed.

    The contents are not validated: that they are token ids is known once they were hashed or decoded."""

    __slots__ = ("cache_salt", "count", "encoded", "known")

    def __init__(self, count: int, encoded: memoryview, cache_salt: str = "", known: KnownPrefix | None = None) -> None:
        self.count = count
        """How many there are."""
        self.encoded = encoded
        """The msgpack integers alone, without the header of their array.  A view of the received frame, which it keeps
        alive."""
        self.cache_salt = cache_salt
        """The tenant: what is remembered of a sequence is for requests with the same salt."""
        self.known = known
        """None: not validated yet."""

    def __eq__(self, other: object) -> bool:
        """The same integers in the same form, wherever they came from; without integers, the same hashes."""
        if isinstance(other, msgspec.Raw):
            return bytes(self.array()) == bytes(other)
        if isinstance(other, TokenSequence):
            return self._identity() == other._identity()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[int, bytes, Sequence[bytes]]:
        hashes = self.known.hashes if self.known and not self.encoded else ()
        return self.count, bytes(self.encoded), tuple(hashes)

    @classmethod
    def of(cls, array: msgspec.Raw | bytes | memoryview, cache_salt: str = "") -> TokenSequence:
        """The sequence in a msgpack array.  Raises ProtocolError unless it is an array that is not too long; that its
        elements are token ids is not looked at.  Takes about 5 ns per token."""
        data = memoryview(array)
        count, header = array_header(data)
        try:
            _skip(data)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"token_ids: {error}") from None
        return cls(count, data[header:], cache_salt)

    def array(self) -> msgspec.Raw:
        """A copy in its wire form, the shortest header before it."""
        return msgspec.Raw(encode_header(self.count) + self.encoded)

    def decode(self) -> list[int]:
        """The numbers.  Holds the GIL, about 35 ns per token.  Raises ProtocolError."""
        try:
            return _decode_integers(self.array())
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"token_ids: {error}") from None


_decode_integers = msgspec.msgpack.Decoder(list[int]).decode
_skip = msgspec.msgpack.Decoder(msgspec.Raw).decode


class EngineKey(msgspec.Struct, frozen=True):
    """Which tokens of which request, for which tenant.  On engine side this is the cache key of every transfer.

    `token_ids` is the whole token sequence so far, still encoded: for the sender of a key the msgpack array
    (`encode_tokens`), in a key that was received always a `TokenSequence`, which is a view of the received frame and
    keeps it alive.  A key is a whole frame: msgspec cannot read it, nor a type that it is part of; `read_key` does.
    """

    model_name: str
    world_size: int
    """KV shards per chunk."""
    worker_id: int | None
    """The shard; None where the scheduler asks for all of them."""
    token_ids: TokenSequence | msgspec.Raw
    start: int
    """First token of the range."""
    end: int
    """One past the last token of the range."""
    request_id: str
    cache_salt: str = ""
    request_configs: dict[str, Any] | None = None
    num_kv_readers: int = 0
    """Reads that a lookup reserves of each object; 0 from clients that do not send it."""


NO_TOKENS: Final = msgspec.Raw(b"\x90")
"""`token_ids` of a key that has none."""


class HashedKey(EngineKey, frozen=True, kw_only=True):
    """The key of an engine that hashes for itself, with NO_TOKENS for `token_ids`.  A server reads an EngineKey from it.

    Raises ProtocolError for hashes that must not leave a process, and for those that one algorithm does not give."""

    chunk_hashes: Sequence[bytes]
    """Of the prompt's chunks from the first on, whatever the range is, each of 16 bytes or more, all of one length.  A hash
    covers all tokens up to the end of its chunk, which has as many as the server's chunks have."""
    hash_algorithm: str
    """What gave them: chunks of other names are not found."""
    hash_seed: str = ""

    def __post_init__(self) -> None:
        _external(self, "")


def _external(fields: Any, model_name: str) -> tuple[Sequence[bytes], str]:
    """Hashes as keys have them, and the name of the model with what gave them.  Raises ProtocolError."""
    try:
        read = ExternalHashes.of(fields.chunk_hashes)
        read.check_lasting(fields.hash_algorithm)
        return read.hashes, read.model_name(model_name, fields.hash_algorithm, fields.hash_seed)
    except ValueError as error:
        raise ProtocolError(f"chunk_hashes: {error}") from None


def encode_tokens(tokens: Iterable[int]) -> msgspec.Raw:
    """The wire form of `tokens`, to be put into an EngineKey."""
    return msgspec.Raw(msgspec.msgpack.encode(list(tokens)))


def array_header(data: memoryview) -> tuple[int, int]:
    """The number of elements that the header of an array claims, and the bytes of that header.  Raises ProtocolError."""
    lead = data[0] if data else _NIL
    if 0x90 <= lead <= 0x9F:
        count, header = lead & 0x0F, 1
    elif lead in (0xDC, 0xDD):
        header = 3 if lead == 0xDC else 5
        count = int.from_bytes(data[1:header], "big")
    else:
        raise ProtocolError(f"token_ids: expected an array of integers, got a value that starts with 0x{lead:02x}")
    if len(data) < header:
        raise ProtocolError("token_ids: Input data was truncated")
    if count > MAX_TOKENS:
        raise ProtocolError(
            f"token_ids: {count} tokens, more than the {MAX_TOKENS} that this server takes in a request"
        )
    return count, header


def encode_header(count: int) -> bytes:
    """The shortest header of an array."""
    if count <= 0x0F:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count <= 0xFFFF else b"\xdd" + count.to_bytes(4, "big")


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
    fields += [("chunk_hashes", list[bytes] | None, None), ("hash_algorithm", str, ""), ("hash_seed", str, "")]
    return msgspec.defstruct("EngineKey", fields)


decode_fields = msgspec.msgpack.Decoder(_encoded_key()).decode
"""A frame to a struct with the fields of an EngineKey, `token_ids` being a msgspec.Raw that lies in the frame."""


def read_key(frame: Frame, chunk_tokens: int = 1) -> EngineKey:
    """The key in a frame.  Raises ProtocolError, or ValueError and RecursionError as msgspec does."""
    fields = decode_fields(frame)
    array = memoryview(fields.token_ids)
    count, header = array_header(array)
    if fields.chunk_hashes is None:
        if EXTERNAL_NAME.search(fields.model_name):
            raise ProtocolError(
                f"the model name ends with {fields.model_name[-22:]!r}, which the server adds to names of keys with "
                "chunk_hashes: leave it out"
            )
        return with_tokens(fields, TokenSequence(count, array[header:], fields.cache_salt))
    tokens = len(fields.chunk_hashes) * chunk_tokens
    if count or tokens > MAX_TOKENS:
        raise ProtocolError(
            f"a key has {count} token_ids and chunk_hashes of {tokens} tokens: one of them, up to {MAX_TOKENS}"
        )
    hashes, fields.model_name = _external(fields, fields.model_name)
    known = KnownPrefix(hashes, 0, 0)
    return with_tokens(fields, TokenSequence(tokens, memoryview(b""), fields.cache_salt, known))


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
