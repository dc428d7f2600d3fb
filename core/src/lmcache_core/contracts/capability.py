"""What adapters may promise.  Alone in its file, so that listing offers imports nothing else."""

from __future__ import annotations

from enum import Flag, auto


class Capability(Flag):
    """What an adapter promises beyond store, lookup and load.  The server and the conformance kit act on it."""

    NONE = 0
    DELETE = auto()
    """`submit_delete` removes objects."""
    USAGE = auto()
    """`usage` is exact once nothing is in flight; None until it is known what was there at the start."""
    LIST = auto()
    """`list_keys` names every object, and survives changes between two pages."""
    DURABLE = auto()
    """What was stored is found again after the process was killed."""
    SHARED = auto()
    """Several servers may use one backend at once."""
    ZERO_COPY = auto()
    """Bytes go between borrowed memory and the backend without a copy in this process."""
    VERIFIES = auto()
    """Loads are checked against header and digest while the bytes pass; core does not check them again."""
    ANY_LENGTH = auto()
    """Loads also into a buffer that is longer than the object (`BorrowedBuffer.at_most`), so that what a serde has made shorter
    takes less room.  Without it, what serdes make is padded to one length."""
    READ_ONLY = auto()
    """Objects come there by other ways.  Nothing is planned to be stored there, and its objects cannot be evicted from here."""
