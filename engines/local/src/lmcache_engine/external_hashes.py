"""Chunks that an engine names by hashes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from blake3 import blake3

KEY_BYTES: Final = 32
LASTING_BYTES: Final = 16
"""Shorter ones can be equal by chance once many processes share what is stored."""
_INTEGER_BYTES: Final = (9, 33)
"""Of one of at most 71 bits, and of others."""
_BYTES, _INTEGER = 1, 2
_DIGEST_BYTES: Final = 8


class ExternalHashes(NamedTuple):
    """Of a prompt's chunks, from the first on."""

    hashes: Sequence[bytes]
    """As keys have them."""
    kind: int
    size: int
    """Of each as it was given, in bytes."""

    def model_name(self, model_name: str, algorithm: str, seed: str) -> str:
        """That of what is stored under them, so that no two hashers find each other's chunks."""
        names = b"".join(len(each).to_bytes(1) + each for each in (algorithm.encode()[:255], seed.encode()[:255]))
        facts = names + self.kind.to_bytes(1) + self.size.to_bytes(2, "big")
        return f"{model_name}##ext-{blake3(facts).hexdigest(_DIGEST_BYTES)}"


def read_hashes(hashes: Sequence[bytes | int], offsets: Sequence[int] | None, chunk_tokens: int) -> ExternalHashes:
    """`offsets`: the tokens that each hash is for.  Raises ValueError for others than a whole chunk, for another number of
    them, and for hashes that one algorithm does not give."""
    if offsets is None or len(offsets) != len(hashes):
        raise ValueError(f"{len(hashes)} hashes need as many offsets: the tokens that each is for")
    if others := [each for each in offsets if each != chunk_tokens]:
        raise ValueError(f"an offset is {others[0]}; offsets are multiples of the chunk, one for each: {chunk_tokens}")
    read = [_read(each) for each in hashes]
    if len(kinds := {(kind, len(data)) for kind, data in read}) > 1:
        raise ValueError("hashes of one prompt are all bytes of one length, or all integers")
    kind, size = next(iter(kinds), (_BYTES, KEY_BYTES))
    return ExternalHashes([_fitted(data) for _, data in read], kind, size)


def _read(value: bytes | int) -> tuple[int, bytes]:
    if isinstance(value, bytes) and 0 < len(value) < 2**16:
        return _BYTES, value
    if isinstance(value, int) and not isinstance(value, bool):
        for size in _INTEGER_BYTES:
            if value.bit_length() < 8 * size:
                return _INTEGER, value.to_bytes(size, "big", signed=True)
    raise ValueError(f"a hash is bytes or an integer of at most 256 bits, not {value!r:.80}")


def _fitted(data: bytes) -> bytes:
    return data.ljust(KEY_BYTES, b"\0") if len(data) <= KEY_BYTES else blake3(data).digest()
