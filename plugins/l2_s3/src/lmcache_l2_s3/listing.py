"""The keys of a bucket's objects, page by page.  Blocks; runs on the thread of the caller."""

from __future__ import annotations

from typing import Final

from lmcache_core import KeyPage, ObjectHeader, ObjectKey, inspect
from lmcache_l2_s3.answers import Answer, Reply, S3Error
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
    found: dict[ObjectKey, int] = {}
    while True:
        page = bucket.control.list_page(after, limit - len(found))
        found |= _sizes_of(bucket, known, page)
        after = page.after
        if after is None or len(found) >= limit:
            return KeyPage(tuple(found), after, tuple(found.values()))


def _sizes_of(bucket: Bucket, known: KnownKeys, page: ListedPage) -> dict[ObjectKey, int]:
    named = [(each.name, object_id) for each in page.objects if (object_id := object_id_of(each.name)) is not None]
    keys = {object_id: key for _, object_id in named if (key := known.get(object_id)) is not None}
    unknown = [(name, object_id) for name, object_id in named if object_id not in keys]
    for start in range(0, len(unknown), PEEKS_MAX):
        batch = unknown[start : start + PEEKS_MAX]
        peeked = _peeked(bucket, [name for name, _ in batch])
        for name, object_id in batch:
            reply, first = peeked[name]
            if reply.answer not in (Answer.OK, Answer.ABSENT, Answer.EMPTY, Answer.REFUSED):
                # A listing that leaves out what it could not read would name too little without saying so.
                raise S3Error(
                    bucket.adapter, f"reading the header of '{name}'", reply.answer, reply.status, reply.detail
                )
            header = inspect(first) if first else None
            if isinstance(header, ObjectHeader) and object_name(bucket.prefix, header.key) == name:
                keys[object_id] = header.key
                known.note(header.key)
    sizes = {each.name: each.size for each in page.objects}
    return {keys[object_id]: sizes[name] for name, object_id in named if object_id in keys}


def _peeked(bucket: Bucket, names: list[str]) -> dict[str, tuple[Reply, bytes]]:
    """A store may break the connection over an object that vanishes while it is read: headers that broke off are read again."""
    peeked = dict(zip(names, bucket.client.peek_blocking(names, PEEK_SECONDS), strict=True))
    failed = [name for name, (reply, _) in peeked.items() if reply.answer is Answer.UNREACHABLE]
    return peeked | dict(zip(failed, bucket.client.peek_blocking(failed, PEEK_SECONDS), strict=True))
