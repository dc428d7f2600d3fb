"""What lies under an object's name, as its first page tells."""

from __future__ import annotations

from lmcache_core import HEADER_BYTES, Check, ObjectHeader, ObjectKey, Outcome, inspect
from lmcache_object_remote import OtherVersions


def check_page(page: bytes, length: int, key: ObjectKey, others: OtherVersions) -> Outcome:
    """DONE: the object of this key, as far as one can tell without its payload.  DAMAGED: ours, but short, long, altered, or of
    another format version that makes room; an empty one is what a torn store leaves.  FOREIGN: something else."""
    if length == 0:
        return Outcome.DAMAGED
    header = inspect(page)
    if not isinstance(header, ObjectHeader):
        return others.outcome_of(header, key.object_id) if isinstance(header, Check) else Outcome.FOREIGN
    if header.key != key:
        return Outcome.FOREIGN
    return Outcome.DONE if length == HEADER_BYTES + header.stored_bytes else Outcome.DAMAGED
