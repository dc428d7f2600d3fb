"""What every registration of a worker is checked for, and what becomes of those that are refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from lmcache_client.errors import ProtocolError
from lmcache_core.contracts.request_module import ModuleContext, ObjectGroup, SpaceFields
from lmcache_core.model.keys import pack_kv_rank
from lmcache_core.server.request_names import check_model_name

logger = logging.getLogger(__name__)

REASON_MAX: Final = 300
REASONS_MAX: Final = 100
"""Characters of a reason, and number of reasons, that status keeps."""
L1_CHUNKS_MIN: Final = 8
"""So many chunks of a worker must fit into L1."""


def check_groups(
    context: ModuleContext, model_name: str, world_size: int, shard: int, groups: Sequence[ObjectGroup]
) -> None:
    """Raises ProtocolError or ValueError, now and not at the first store, if a worker's keys or objects cannot be kept."""
    check_model_name(model_name)
    for number, group in enumerate(groups):
        context.space(SpaceFields(model_name, ""), pack_kv_rank(world_size, shard), group.layout, number)
    chunk_bytes = sum(group.layout.payload_bytes for group in groups)
    if chunk_bytes > context.l1_bytes // L1_CHUNKS_MIN:
        raise ProtocolError(
            f"a chunk of {chunk_bytes / 2**20:.1f} MiB is too large for an L1 of "
            f"{context.l1_bytes / 2**30:.2f} GiB; raise l1_size_gb or lower chunk_size"
        )


class RefusedRegistrations:
    """Their engines run uncached: here an operator learns why.  Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, int] = {}

    def note(self, context: ModuleContext, instance_id: int, reason: object) -> None:
        """Log it and count it.  The worker has its answer, so that no ping need tell it again."""
        logger.error("registration refused, the engine runs uncached instance=%d reason=%s", instance_id, reason)
        text = str(reason)[:REASON_MAX]
        with self._lock:
            if text in self._reasons or len(self._reasons) < REASONS_MAX:
                self._reasons[text] = self._reasons.get(text, 0) + 1
        context.workers.seen(instance_id, pinged=False)

    def status(self) -> dict[str, int]:
        """How often, by reason."""
        with self._lock:
            return dict(self._reasons)
