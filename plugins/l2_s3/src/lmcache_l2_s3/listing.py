"""The keys of a bucket's objects, page by page.  Blocks; runs on the thread of the caller."""

from __future__ import annotations

from typing import Final

from lmcache_core import KeyPage, ObjectHeader, ObjectKey, inspect
from lmcache_l2_s3.answers import Answer, S3Error
from lmcache_l2_s3.bucket import Bucket
from lmcache_l2_s3.control_plane import ListedPage
from lmcache_l2_s3.known_keys import KnownKeys
from lmcache_object_remote import object_id_of, object_name

PEEKS_MAX: Final = 64
"""Headers that are read at the same time."""
PEEK_SECONDS: Final = 15.0


def list_keys(bucket: Bucket, known: KnownKeys, cursor: str | None, limit: int) -> KeyPage:
    """In the order of names; the cursor is where the next page begins.  Reads a header page for each key that this server
    has not met.  Foreign objects, and objects that vanished since, are left out.  Raises S3Error, and ValueError for a
    cursor that was never given."""
    after = bucket.control.from_cursor(cursor)
    keys: list[ObjectKey] = []
    while True:
        page = bucket.control.list_page(after, limit - len(keys))
        keys += _keys_of(bucket, known, page)
        after = page.after
        if after is None or len(keys) >= limit:
            return KeyPage(tuple(keys), after)


def _keys_of(bucket: Bucket, known: KnownKeys, page: ListedPage) -> list[ObjectKey]:
    named = [(each.name, object_id) for each in page.objects if (object_id := object_id_of(each.name)) is not None]
    keys = {object_id: key for _, object_id in named if (key := known.get(object_id)) is not None}
    unknown = [(name, object_id) for name, object_id in named if object_id not in keys]
    for start in range(0, len(unknown), PEEKS_MAX):
        batch = unknown[start : start + PEEKS_MAX]
        peeked = bucket.client.peek_blocking([name for name, _ in batch], PEEK_SECONDS)
        for (name, object_id), (reply, first) in zip(batch, peeked, strict=True):
            if reply.answer not in (Answer.OK, Answer.ABSENT, Answer.EMPTY, Answer.REFUSED):
                # A listing that leaves out what it could not read would name too little without saying so.
                raise S3Error(
                    bucket.adapter, f"reading the header of '{name}'", reply.answer, reply.status, reply.detail
                )
            header = inspect(first) if first else None
            if isinstance(header, ObjectHeader) and object_name(bucket.prefix, header.key) == name:
                keys[object_id] = header.key
                known.note(header.key)
    return [keys[object_id] for _, object_id in named if object_id in keys]
