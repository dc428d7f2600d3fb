"""The token ids of a prompt that grows, in the form in which they travel."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lmcache_client.engine_key import MAX_TOKENS, array_header, encode_header
from lmcache_client.errors import ProtocolError


class PromptTokens:
    """Encoded once, however often they are sent: an append costs about 5 ns per new token and nothing for the old ones,
    and `encoded` one copy where something was appended since.  One thread."""

    __slots__ = ("_array", "_count", "_integers")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._integers = bytearray()
        self._count = 0
        self._array: msgspec.Raw | None = None
        self.extend(tokens)

    def __len__(self) -> int:
        return self._count

    def extend(self, tokens: Iterable[int]) -> None:
        """Append.  Raises ProtocolError, and appends nothing, when there are too many or one that cannot be encoded, such as
        numpy's integers.  Whether they are token ids is for the server to say, as with every payload."""
        new = list(tokens)
        if not new:
            return
        if self._count + len(new) > MAX_TOKENS:
            raise ProtocolError(f"a prompt of {self._count + len(new)} tokens; a request takes {MAX_TOKENS}")
        try:
            array = msgspec.msgpack.encode(new)
        except (TypeError, OverflowError) as error:
            raise ProtocolError(f"token ids are plain integers: {error}") from None
        _, header = array_header(memoryview(array))
        self._integers += memoryview(array)[header:]
        self._count += len(new)
        self._array = None

    def encoded(self) -> msgspec.Raw:
        """All of them, for an EngineKey: byte for byte what `encode_tokens` makes of them.  Stays as it is when more are
        appended."""
        if self._array is None:
            self._array = msgspec.Raw(encode_header(self._count) + self._integers)
        return self._array
