"""The `s3` adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from lmcache_core import AdapterContext, BorrowedBuffer, Capability, Condition, KeyPage, ObjectKey, Outcome, Usage
from lmcache_l2_adapter import AsyncL2Adapter, RetryBudget, RetryPolicy
from lmcache_l2_s3.answers import Answer, Reply, S3Error
from lmcache_l2_s3.bucket import Bucket
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.crt_client import ONLY_NEW, only_same
from lmcache_l2_s3.known_keys import KnownKeys
from lmcache_l2_s3.listing import list_keys
from lmcache_l2_s3.page_check import check_page
from lmcache_l2_s3.replaceable import Replaceable, Useless
from lmcache_object_remote import KnownObjects, object_name

ALWAYS: Final = Capability.DELETE | Capability.LIST | Capability.DURABLE | Capability.ANY_LENGTH
SHARED_PRESENT_SECONDS: Final = 60.0
SHARED_ABSENT_SECONDS: Final = 1.0
ALONE_SECONDS: Final = 3600.0
"""Only this server changes the bucket, apart from its life-cycle rules."""


class S3Adapter(AsyncL2Adapter):
    """Each object an object of a bucket.  The bucket is kept by `Bucket`; this says what its answers mean for a key."""

    def __init__(self, settings: S3Settings, context: AdapterContext) -> None:
        """Raises ResourceError where the bucket is not available."""
        self._settings: Final = settings
        self.capabilities = (
            ALWAYS
            | (Capability.USAGE if settings.owns else Capability.NONE)
            | (Capability.SHARED if settings.shared else Capability.NONE)
        )
        self._known: Final = KnownObjects(
            context.clock,
            entries_max=settings.known_objects_max,
            present_seconds=SHARED_PRESENT_SECONDS if settings.shared else ALONE_SECONDS,
            absent_seconds=SHARED_ABSENT_SECONDS if settings.shared else ALONE_SECONDS,
        )
        self._keys: Final = KnownKeys(settings.known_objects_max)
        self._bucket: Final = Bucket(settings, context)
        self._tracker: Final = self._bucket.tracker
        self._replaceable: Final = Replaceable()
        self._counts: Final = dict.fromkeys(("damaged", "altered_on_the_way"), 0)
        super().__init__(
            context,
            settings.max_in_flight,
            settings.operation_timeout_seconds,
            retry=RetryPolicy(
                settings.retry_attempts_max, budget=RetryBudget(operations_per_retry=100 // settings.retry_percent)
            ),
        )

    async def started(self) -> None:
        await self._bucket.open(self.in_thread)

    async def stopped(self) -> None:
        await self._bucket.close()

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if not self._tracker.reserve(buffer.length):
            return Outcome.REJECTED
        try:
            with self._tracker.changing(key.object_id):
                return await self._store(key, buffer)
        except (asyncio.CancelledError, S3Error):
            self._tracker.doubt()  # it may be there, and the answer was lost
            raise
        finally:
            self._tracker.release(buffer.length)

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if self._replaceable.get(key) is not None:
            return Outcome.MISSING
        name = self._name(key)
        reply = await self._bucket.answers.ask(
            "loading", partial(self._bucket.client.get, name, buffer),
            Answer.ABSENT, Answer.REFUSED, Answer.WRONG_LENGTH, Answer.EMPTY,
        )  # fmt: skip
        match reply.answer:
            case Answer.OK:
                self._seen(key, reply.length)
                return Outcome.DONE
            case Answer.WRONG_LENGTH | Answer.EMPTY:
                return await self._wrong_length(key, buffer)
            case Answer.REFUSED:
                return Outcome.MISSING
        self._gone(key)
        return Outcome.MISSING

    async def contains(self, key: ObjectKey) -> bool:
        if self._replaceable.get(key) is not None:
            return False
        # What is remembered must not vouch for a store that is down: while it fails, it is asked.
        if not self.circuit.failures_in_a_row and (sight := self._known.look(key)) is not None:
            return sight.present
        before = self._known.look(key)
        reply = await self._bucket.answers.ask(
            "looking up", partial(self._bucket.client.head, self._name(key)), Answer.ABSENT, Answer.REFUSED
        )
        is_there = reply.answer is Answer.OK
        # What was stored or deleted while this was asked is newer than the answer.
        if reply.answer is not Answer.REFUSED and self._known.look(key) == before:
            if is_there:
                self._known.present(key, reply.length)
            else:
                self._known.absent(key)
        return is_there

    async def delete(self, key: ObjectKey) -> Outcome:
        sight = self._known.look(key)
        if sight is not None and sight.present and self._keys.get(key.object_id) is not None:
            length = sight.size
        else:
            found, reply = await self._look(key)
            if found in (Outcome.MISSING, Outcome.FOREIGN):
                return Outcome.MISSING
            length = reply.length
        await self._remove(key, length)
        return Outcome.DONE

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """Nothing is removed.  What is damaged gives way to the next store, if another look says so, too; what is whole was
        altered on its way here, and its next store finds it."""
        self._known.forget(key)
        if outcome is not Outcome.DAMAGED and not await self._makes_room(key):
            return False
        if self._replaceable.get(key) is not None:
            return True
        try:
            reading = await self._bucket.second_look.at(key, self._name(key))
        except S3Error as error:
            self._counts["altered_on_the_way"] += error.answer is Answer.CORRUPTED
            raise
        match reading.outcome:
            case Outcome.FOREIGN:
                return False
            case Outcome.DAMAGED:
                self._counts["damaged"] += 1
                self._replaceable.note(key, Useless(reading.etag, reading.length))
            case Outcome.DONE:
                self._counts["altered_on_the_way"] += 1
                self._known.absent(key)  # a hit that fails is worse than a miss
            case _:
                self._gone(key)
        return True

    async def _makes_room(self, key: ObjectKey) -> bool:
        """Is what is FOREIGN to core an object of another format version, which this server may replace?  One that is known to
        be another server's is not looked at again."""
        if self._bucket.others.left_alone(key.object_id):
            return False
        return (await self._look(key))[0] is Outcome.DAMAGED

    def is_transient(self, error: Exception) -> bool:
        return error.is_passing if isinstance(error, S3Error) else super().is_transient(error)

    def usage(self) -> Usage | None:
        return self._tracker.usage(self._bucket.owned) if self._settings.owns else None

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return list_keys(self._bucket, self._keys, cursor, limit)

    def conditions(self) -> Sequence[Condition]:
        return self._bucket.others.conditions()

    def counters(self) -> Mapping[str, int]:
        return {**self._bucket.counters(), **self._counts}

    async def _store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        if useless := self._replaceable.get(key):
            return await self._replace(key, buffer, useless)
        only_new = self._bucket.conditions.only_new
        if not only_new:  # then a look before is all that keeps what is there from being replaced
            found, reply = await self._look(key)
            if found is not Outcome.MISSING:
                return self._taken(key, found, reply.length)
        reply = await self._bucket.answers.ask(
            "storing", partial(self._bucket.client.put, self._name(key), buffer, ONLY_NEW if only_new else None),
            Answer.EXISTS, Answer.FULL, Answer.TOO_LARGE, Answer.REFUSED,
        )  # fmt: skip
        match reply.answer:
            case Answer.OK:
                self._tracker.stored(key.object_id, buffer.length)
                self._seen(key, buffer.length)
                return Outcome.DONE
            case Answer.EXISTS:
                found, reply = await self._look(key)
                return self._taken(key, found, reply.length)
        return Outcome.REJECTED

    async def _replace(self, key: ObjectKey, buffer: BorrowedBuffer, useless: Useless) -> Outcome:
        """Store it in the place of just that version, where the store compares."""
        conditions = self._bucket.conditions
        condition = only_same(conditions.tag(useless.etag)) if conditions.only_same else None
        reply = await self._bucket.answers.ask(
            "replacing", partial(self._bucket.client.put, self._name(key), buffer, condition),
            Answer.EXISTS, Answer.ABSENT, Answer.FULL, Answer.TOO_LARGE, Answer.REFUSED,
        )  # fmt: skip
        match reply.answer:
            case Answer.OK:
                self._replaceable.forget(key)
                self._tracker.deleted(key.object_id, useless.length)
                self._tracker.stored(key.object_id, buffer.length)
                self._seen(key, buffer.length)
                return Outcome.DONE
            case Answer.EXISTS | Answer.ABSENT:  # another server was faster
                self._replaceable.forget(key)
                found, reply = await self._look(key)
                return self._taken(key, found, reply.length)
        return Outcome.REJECTED

    def _taken(self, key: ObjectKey, found: Outcome, length: int) -> Outcome:
        """Something was there when it was to be stored.  Its own object is as good as this one."""
        if found is Outcome.DONE:
            self._seen(key, length)
            return Outcome.DONE
        if found is Outcome.MISSING:  # and is gone again: the next store has room
            return Outcome.REJECTED
        self.reject(key, found)
        return Outcome.REJECTED

    async def _wrong_length(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        """The object has another length than the buffer.  It is rejected by what it is."""
        found, reply = await self._look(key)
        if found is Outcome.MISSING:
            return found
        self._known.forget(key)
        if found is Outcome.DONE:
            if reply.length == buffer.length or (buffer.at_most and reply.length < buffer.length):
                self._counts["altered_on_the_way"] += 1
                raise S3Error(self.context.name, "loading", Answer.CORRUPTED, None, "another length than it has")
            # Ours and whole, but of another length than this key's objects have here: it is of no use.
            self._replaceable.note(key, Useless(reply.etag, reply.length))
            found = Outcome.DAMAGED
        self.reject(key, found)
        return found

    async def _look(self, key: ObjectKey) -> tuple[Outcome, Reply]:
        """What is under the name of this key, MISSING included, and in the reply how long it is and which version."""
        page = b""

        async def peek() -> Reply:
            nonlocal page
            reply, page = await self._bucket.client.peek(self._name(key))
            return reply

        reply = await self._bucket.answers.ask("looking at", peek, Answer.ABSENT, Answer.EMPTY)
        if reply.answer is Answer.ABSENT:
            self._gone(key)
            return Outcome.MISSING, reply
        return check_page(page, reply.length, key, self._bucket.others), reply

    async def _remove(self, key: ObjectKey, length: int) -> None:
        with self._tracker.changing(key.object_id):
            try:
                await self._bucket.answers.ask(
                    "deleting", partial(self._bucket.bulk.delete, self._name(key)), Answer.ABSENT
                )
            except (asyncio.CancelledError, S3Error):
                self._known.forget(key)
                self._tracker.doubt()
                raise
            self._tracker.deleted(key.object_id, length)
        self._replaceable.forget(key)
        self._known.absent(key)
        self._keys.forget(key)

    def _seen(self, key: ObjectKey, length: int) -> None:
        self._known.present(key, length)
        self._keys.note(key)

    def _gone(self, key: ObjectKey) -> None:
        sight = self._known.look(key)
        if sight is not None and sight.present:
            self._tracker.doubt()  # another server removed it
        self._known.absent(key)
        self._keys.forget(key)

    def _name(self, key: ObjectKey) -> str:
        return object_name(self._settings.prefix, key)


def open_s3(settings: S3Settings, context: AdapterContext) -> S3Adapter:
    """Check the bucket, find out what the store can do, become its owner or its guest, and serve.  Raises ResourceError."""
    return S3Adapter(settings, context)
