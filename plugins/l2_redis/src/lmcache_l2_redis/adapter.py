"""The `redis` adapter."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    Capability,
    Condition,
    KeyPage,
    LMCacheError,
    ObjectKey,
    Outcome,
    ProtocolError,
    ResourceError,
    Usage,
    check,
)
from lmcache_l2_adapter import AsyncL2Adapter, PassingDigest
from lmcache_l2_redis.client import Client
from lmcache_l2_redis.config import RedisSettings
from lmcache_l2_redis.connection import Resolve
from lmcache_l2_redis.counting import Counting
from lmcache_l2_redis.errors import DeniedError, NoRoomError, PassingError, RedirectedError, ReplyError
from lmcache_l2_redis.listing import Listing
from lmcache_l2_redis.owner_records import RedisOwnerRecords
from lmcache_l2_redis.replies import command
from lmcache_l2_redis.server_facts import ServerFacts, server_facts
from lmcache_l2_redis.topology import Topology
from lmcache_l2_redis.values import Values
from lmcache_object_remote import OtherVersions, Ownership, UsageCounter, admit_guest, object_name
from lmcache_object_remote.second_look import SecondLook

BASE: Final = Capability.DELETE | Capability.USAGE | Capability.LIST | Capability.ANY_LENGTH | Capability.VERIFIES
GIVE_UP_SECONDS: Final = 1.0

NewTopology = Callable[[Resolve], Topology]


class RedisAdapter(AsyncL2Adapter):
    """One loop, one connection for each object on its way."""

    def __init__(self, settings: RedisSettings, context: AdapterContext, new_topology: NewTopology, place: str) -> None:
        """`place` names the backend in messages, without secrets."""
        self.capabilities = BASE
        if settings.shared:
            self.capabilities |= Capability.SHARED
        if settings.server_persists:
            self.capabilities |= Capability.DURABLE
        self._settings: Final = settings
        self._place: Final = place
        self._new_topology: Final = new_topology
        self._usage_counter: Final = UsageCounter()
        self._reserved_bytes = 0
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._counts: Final = dict.fromkeys(("rejected_full", "foreign", "damaged"), 0)
        self._ownership: Ownership | None = None
        self._others: Final = OtherVersions(context.clock, lambda: self._owned and not settings.shared)
        super().__init__(context, settings.num_connections, settings.timeout_seconds)

    # Life.

    async def started(self) -> None:
        settings, context = self._settings, self.context
        self._topology = self._new_topology(self._resolve)
        self._client = Client(self._topology)
        self._values = self._values_of(self._client)
        self._second_look = SecondLook(self._read_anew, self.in_thread)
        self._listing = Listing(
            self._client, settings.key_prefix, asyncio.get_running_loop(), context.clock, self.in_thread
        )
        try:
            await self._topology.learn()
            facts = await server_facts(self._topology)
            self._warn_of(facts)
            await self._take_or_join()
        except (OSError, ReplyError, ProtocolError) as error:
            self._topology.close()
            raise ResourceError(f"{context.name}: {self._place}: {error}; {_remedy(error)}") from None
        except BaseException:
            self._topology.close()
            raise
        changes = settings.shared or settings.ttl_seconds is not None or facts.evicts
        self._counting = Counting(
            self._client,
            self._usage_counter,
            settings.key_prefix,
            context.logger,
            every_seconds=settings.recount_seconds if changes else None,
            may_clean_up=lambda: self._owned,
        )
        self._begin(self._counting.run())
        if self._ownership is not None:
            self._begin(self._ownership.keep())

    async def stopped(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            if self._ownership is not None:
                with suppress(OSError, ReplyError, LMCacheError):  # the lease ends by itself
                    async with asyncio.timeout(GIVE_UP_SECONDS):
                        await self._ownership.give_up()
        finally:
            self._topology.close()

    # Objects.

    async def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        name = self._name(key)
        if self._settings.shared:  # another server may have stored it: asking is cheaper than sending it all
            standing = await self._settled(key, name)
            if standing is not Outcome.MISSING:
                return standing
        if not self._has_room(buffer.length):
            self._counts["rejected_full"] += 1
            return Outcome.REJECTED
        self._reserved_bytes += buffer.length
        try:
            for _ in range(2):
                if await self._put(key, name, buffer):
                    return Outcome.DONE
                standing = await self._settled(key, name)
                if standing is not Outcome.MISSING:  # it has gone meanwhile, or was damaged and was taken away
                    return standing
            return Outcome.REJECTED
        except NoRoomError:
            self._counts["rejected_full"] += 1
            return Outcome.REJECTED
        finally:
            self._reserved_bytes -= buffer.length

    async def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        view, digest = buffer.view, PassingDigest()
        outcome = await self._values.get(self._name(key), view, digest.passed, at_most=buffer.at_most)
        if outcome is Outcome.DONE:
            found = check(view, key, digest.digest(), at_most=buffer.at_most)
            outcome = self._others.outcome_of(found, self._name(key))
        if outcome is Outcome.FOREIGN or outcome is Outcome.DAMAGED:
            self._counts[outcome.value] += 1
        if outcome is Outcome.DAMAGED:
            self._second_look.was_loaded_in_vain(key, buffer)
        return outcome

    async def contains(self, key: ObjectKey) -> bool:
        name = self._name(key)
        (reply,) = await self._client.ask(name, command("EXISTS", name))
        return reply == 1

    async def delete(self, key: ObjectKey) -> Outcome:
        return Outcome.DONE if await self._remove(key) is Outcome.DONE else Outcome.MISSING

    async def discard(self, key: ObjectKey, outcome: Outcome) -> bool:
        """What is damaged is removed, unless it turns out to be whole when it is read again."""
        if outcome is not Outcome.DAMAGED:
            return False
        if await self._second_look.finds_whole(key):
            return True
        return await self._remove(key) is not Outcome.FOREIGN

    def is_transient(self, error: Exception) -> bool:
        return super().is_transient(error) or isinstance(error, OSError | PassingError | RedirectedError)

    def usage(self) -> Usage | None:
        """Without a capacity where another server may own the backend: core evicts nothing then."""
        return self._usage_counter.usage(self._settings.capacity_bytes if self._owned else None)

    def list_keys(self, cursor: str | None, limit: int) -> KeyPage:
        return self._listing.page(cursor, limit)

    def conditions(self) -> Sequence[Condition]:
        return self._others.conditions()

    def counters(self) -> Mapping[str, int]:
        usage = self._usage_counter.usage()
        known = {} if usage is None else {"objects": usage.objects, "bytes": usage.used_bytes}
        return {**known, "counting": int(usage is None), "owner": int(self._owned), **self._counts}

    # How.

    @property
    def _owned(self) -> bool:
        """By this server, now.  Any thread."""
        return self._ownership is not None and self._ownership.held

    def _name(self, key: ObjectKey) -> bytes:
        return object_name(self._settings.key_prefix, key).encode()

    def _values_of(self, client: Client) -> Values:
        settings = self._settings
        return Values(
            client,
            settings.key_prefix,
            self._others,
            piece_bytes=settings.value_piece_bytes,
            ttl_seconds=settings.ttl_seconds,
        )

    async def _read_anew(self, key: ObjectKey) -> memoryview | None:
        """Over connections of its own, to the node that has the object by the current topology."""
        topology = self._new_topology(self._resolve)
        try:
            await topology.learn()
            return await self._values_of(Client(topology)).read(self._name(key))
        finally:
            topology.close()

    async def _put(self, key: ObjectKey, name: bytes, buffer: BorrowedBuffer) -> bool:
        with self._change(key):
            return await self._values.put(
                name, buffer.view, on_new=lambda: self._usage_counter.stored(key.object_id, buffer.length)
            )

    async def _remove(self, key: ObjectKey) -> Outcome:
        with self._change(key):
            return await self._values.remove(
                self._name(key), on_gone=lambda size: self._usage_counter.deleted(key.object_id, size)
            )

    @contextmanager
    def _change(self, key: ObjectKey) -> Iterator[None]:
        """Whatever ends the block but an answer leaves open what the server has done: count anew then."""
        try:
            with self._usage_counter.changing(key.object_id):
                yield
        except ReplyError:
            raise
        except BaseException:
            self._counting.count_soon()
            raise

    async def _settled(self, key: ObjectKey, name: bytes) -> Outcome:
        """The result of a store by the value in its place: DONE, REJECTED, or MISSING where it may go on."""
        standing = await self._values.standing(name)
        if standing.outcome is Outcome.FOREIGN:
            return Outcome.REJECTED
        if standing.outcome is Outcome.DAMAGED:
            self._counts["damaged"] += 1
            return Outcome.MISSING if await self.discard(key, Outcome.DAMAGED) else Outcome.REJECTED
        return standing.outcome

    def _has_room(self, size: int) -> bool:
        """Until it is known what there is, all is taken."""
        usage = self._usage_counter.usage(self._settings.capacity_bytes)
        if usage is None or usage.capacity_bytes is None:
            return True
        return usage.used_bytes + self._reserved_bytes + size <= usage.capacity_bytes

    async def _take_or_join(self) -> None:
        settings, context = self._settings, self.context
        records = RedisOwnerRecords(self._client, settings.key_prefix)
        place = f"{context.name}: {self._place}, key_prefix '{settings.key_prefix}'"
        if not settings.owns:
            await admit_guest(records, clock=context.clock, place=place)
            return
        self._ownership = Ownership(
            records,
            instance_id=context.instance_id,
            boot_id=context.boot_id,
            shared=settings.shared,
            clock=context.clock,
            lease_seconds=settings.owner_lease_seconds,
            conditional=True,
            place=place,
            logger=context.logger,
        )
        await self._ownership.take()

    def _warn_of(self, facts: ServerFacts) -> None:
        if self._settings.server_persists:
            for doubt in facts.doubts_of_durability():
                self.context.logger.warning(
                    "server_persists is set, but %s adapter=%s; what was stored may be gone after the server's restart",
                    doubt, self.context.name,
                )  # fmt: skip

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)

    async def _resolve(self, *arguments: Any, **named: Any) -> Any:
        return await self.in_thread(socket.getaddrinfo, *arguments, **named)


def _remedy(error: Exception) -> str:
    if isinstance(error, DeniedError):
        return "check username and password, and that this user may use the names under key_prefix"
    if isinstance(error, ProtocolError):
        return "is that a server that speaks the protocol of Redis, and with TLS or without?"
    return "check that it runs and can be reached, and the adapter's settings"
