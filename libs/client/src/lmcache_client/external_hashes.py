"""Chunks that an engine names by hashes of its own (docs/internals/object-format.md, "Object key")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from blake3 import blake3

KEY_BYTES: Final = 32
LASTING_BYTES: Final = 16
"""Shorter ones can be equal by chance once many processes share what is stored."""
PROCESS_HASHES: Final = ("builtin", "")
"""Names of algorithms that each process seeds anew, or that say nothing."""
EXTERNAL_NAME: Final = re.compile(r"##ext-.{16}\Z", re.DOTALL)
"""Found in what `ExternalHashes.model_name` gives.  A pattern, because each lookup asks for it."""
_NAME_BYTES_MAX: Final = 255
_INTEGER_BYTES: Final = (9, 33)
"""Of one of at most 71 bits, and of others."""
_BYTES, _INTEGER = 1, 2
_DIGEST_BYTES: Final = 8


class ExternalHashes(NamedTuple):
    """Of a prompt's chunks, from the first on.  Each covers all tokens before its chunk's end."""

    hashes: Sequence[bytes]
    """As keys have them."""
    kind: int
    size: int
    """Of each as it was given, in bytes."""

    @classmethod
    def of(cls, values: Sequence[bytes | int]) -> ExternalHashes:
        """Raises ValueError for what one algorithm does not give."""
        read = [_read(each) for each in values]
        if len(kinds := {(kind, len(data)) for kind, data in read}) > 1:
            raise ValueError("hashes of one prompt are all bytes of one length, or all integers")
        kind, size = next(iter(kinds), (_BYTES, KEY_BYTES))
        return cls([_fitted(data) for _, data in read], kind, size)

    def lasts(self, algorithm: str) -> bool:
        """May they name what other processes find?"""
        return self.size >= LASTING_BYTES and algorithm not in PROCESS_HASHES

    def check_lasting(self, algorithm: str) -> None:
        """Raises ValueError, with the remedy, unless other processes may find what they name."""
        if not self.lasts(algorithm):
            raise ValueError(
                f"hashes of {self.size} bytes by '{algorithm:.80}' name chunks of one process only: give hashes of at least "
                f"{LASTING_BYTES} bytes, and name an algorithm that gives each process the same ones"
            )

    def model_name(self, model_name: str, algorithm: str, seed: str) -> str:
        """That of what is stored under them, so that no two hashers find each other's chunks.  Raises ValueError for names of
        more than 255 bytes."""
        names = algorithm.encode(), seed.encode()
        if max(map(len, names)) > _NAME_BYTES_MAX:
            raise ValueError(f"the names of a hash algorithm and its seed have at most {_NAME_BYTES_MAX} bytes each")
        text = b"".join(len(each).to_bytes(1) + each for each in names)
        facts = text + self.kind.to_bytes(1) + self.size.to_bytes(2, "big")
        return f"{model_name}##ext-{blake3(facts).hexdigest(_DIGEST_BYTES)}"


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
