"""What a worker has of the server that it is registered with."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from lmcache_client import EngineChannel, L1Segment, SlotDescriptor
from lmcache_vllm.transfer_pages import ChunkPages


class Registration:
    """One registration: what it is called, a connection for its transfers, and L1 as that server has it. Never changes,
    and is never used for another server: the server that answers to this instance id is the one whose memory is mapped here."""

    def __init__(
        self,
        instance_id: int,
        channel: EngineChannel,
        segment: L1Segment,
        pages: ChunkPages,
        fence_seconds: float,
        asked: float,
    ) -> None:
        """`fence_seconds` is what the server was promised, 0 where it takes no silent worker for dead; `asked` is when it was
        asked for this registration (`time.monotonic`)."""
        self.instance_id = instance_id
        self.channel = channel
        self.segment = segment
        self.pages = pages
        self.fence_seconds = fence_seconds or math.inf
        self.users = 0
        self._heard = asked

    def heard(self, asked: float) -> None:
        """The server knew this registration in its answer to what was asked then, so it has heard it since.  Any thread."""
        self._heard = max(self._heard, asked)

    @property
    def is_fenced(self) -> bool:
        """Whether the server may have missed this worker's pings until its slots may soon be another's: no copy begins,
        and what was read is thrown away.  Any thread."""
        return time.monotonic() - self._heard > self.fence_seconds

    def addresses(self, slots: Sequence[SlotDescriptor]) -> list[int]:
        """Where these slots lie in this process. Raises ValueError for one that is not the size of a chunk, or not
        inside of the mapped memory."""
        for slot in slots:
            if slot.length != self.pages.payload_bytes:
                raise ValueError(
                    f"the server gave a slot of {slot.length} bytes for a chunk of {self.pages.payload_bytes}"
                )
        return [self.segment.payload_address(slot) for slot in slots]
