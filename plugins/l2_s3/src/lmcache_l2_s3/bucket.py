"""A bucket that was opened: both clients, whose it is, and what keeps it in order in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from lmcache_core import AdapterContext, ResourceError
from lmcache_l2_s3.answers import S3Error
from lmcache_l2_s3.bulk_delete import BulkDelete
from lmcache_l2_s3.calls import InThread
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.control_plane import Conditions, ControlPlane
from lmcache_l2_s3.credentials import SigningKeys, session_of
from lmcache_l2_s3.crt_client import CrtClient
from lmcache_l2_s3.endpoint import express_service
from lmcache_l2_s3.owner_object import OwnerObject
from lmcache_l2_s3.second_look import SecondLook
from lmcache_l2_s3.store_answers import StoreAnswers
from lmcache_l2_s3.usage_tracker import UsageTracker
from lmcache_object_remote import OWNER_NAME, OtherVersions, Ownership, admit_guest

CLOSE_SECONDS: Final = 2.0
PROBE_NAME: Final = ".probe-"


class Bucket:
    """One event loop, but `control`, `client.peek_blocking`, `tracker` and `counters` from any thread."""

    control: ControlPlane
    client: CrtClient
    bulk: BulkDelete
    second_look: SecondLook
    conditions: Conditions

    def __init__(self, settings: S3Settings, context: AdapterContext) -> None:
        self._settings: Final = settings
        self._context: Final = context
        self._place: Final = f"{context.name}: {settings.endpoint.describe()}, prefix '{settings.prefix}'"
        self._background: Final = set[asyncio.Task[None]]()
        self._ownership: Ownership | None = None
        self._in_thread: InThread
        self.adapter: Final = context.name
        self.prefix: Final = settings.prefix
        self.tracker: Final = UsageTracker(settings.capacity_bytes)
        self.others: Final = OtherVersions(context.clock, lambda: self.is_alone)
        self.answers: Final = StoreAnswers(context.name, 2 * settings.max_in_flight, context.clock)

    async def open(self, in_thread: InThread) -> None:
        """Raises ResourceError, and leaves nothing open then."""
        self._in_thread = in_thread
        try:
            await self._open(in_thread)
        except S3Error as error:
            await self.close()
            raise ResourceError(f"{self._place}: {error}") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close what was opened.  Call it when no operation runs any more."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        try:
            if self._ownership is not None:
                await self._ownership.give_up()
        except S3Error as error:
            self._context.logger.warning("%s: its owner's record stays until its lease ends: %s", self._place, error)
        finally:
            if hasattr(self, "client") and not await self._in_thread(self.client.close, CLOSE_SECONDS):
                self._context.logger.error("%s: threads of the client have not ended", self._place)
            if hasattr(self, "control"):
                self.control.close()

    @property
    def is_alone(self) -> bool:
        """Does no other server use it?"""
        return self.owned and not self._settings.shared

    @property
    def owned(self) -> bool:
        """By this server, now.  Any thread."""
        return self._ownership is not None and self._ownership.held

    def counters(self) -> Mapping[str, int]:
        return {
            **self.answers.counters(),
            "foreign": self.tracker.foreign,
            "listings": self.tracker.listings,
            "owner": int(self.owned),
            "conditional_writes": int(self.conditions.only_new),
        }

    async def _open(self, in_thread: InThread) -> None:
        settings, context = self._settings, self._context
        session = await in_thread(session_of, settings, context.instance_id)
        self.control = await in_thread(ControlPlane, settings, session, context.name)
        signing = await in_thread(SigningKeys, session, context.name)
        await in_thread(self.control.check_bucket)
        self.conditions = await in_thread(self.control.probe, f"{settings.prefix}{PROBE_NAME}{context.boot_id}")
        records = OwnerObject(self.control, settings.prefix + OWNER_NAME, self.conditions, in_thread)
        if settings.owns:
            self._ownership = Ownership(
                records,
                instance_id=context.instance_id,
                boot_id=context.boot_id,
                shared=settings.shared,
                clock=context.clock,
                lease_seconds=settings.owner_lease_seconds,
                conditional=records.compares,
                place=self._place,
                logger=context.logger,
            )
            await self._ownership.take()
        else:
            await admit_guest(records, clock=context.clock, place=self._place)
        host, path = self._host_and_path()
        self.client = CrtClient(settings, signing.provider(), host, path)
        self.bulk = BulkDelete(self.control, self.client, in_thread)
        self.second_look = SecondLook(
            self.control, in_thread, context.name, settings.operation_timeout_seconds, self.others
        )
        if self._ownership is not None:
            self._start(self._ownership.keep())
            every = settings.recount_seconds if settings.shared else None
            self._start(self.tracker.keep(self.control, in_thread, every, context.logger))
            self._start(self._clean_up(in_thread))
        if signing.expire:
            self._start(self._renew(signing, in_thread))
        if not self.conditions.only_new:
            context.logger.warning(
                "%s: this store does not know If-None-Match, so every store looks first whether something is there",
                self._place,
            )

    def _host_and_path(self) -> tuple[str, str]:
        """The host of requests, and the prefix of an object's name."""
        endpoint = self._settings.endpoint
        if self._settings.s3_enable_s3express:
            service = express_service(endpoint.bucket, self._settings.s3_region)
        else:
            service = endpoint.service or urlsplit(self.control.url).netloc
        if endpoint.path_style:
            return service, f"/{endpoint.bucket}"
        return f"{endpoint.bucket}.{service}", ""

    async def _renew(self, signing: SigningKeys, in_thread: InThread) -> None:
        while True:
            await asyncio.sleep(signing.REFRESH_SECONDS)
            try:
                await in_thread(signing.refresh)
            except Exception as error:  # noqa: BLE001 - botocore's providers raise what they like
                self._context.logger.warning("%s: credentials cannot be renewed: %s", self._place, type(error).__name__)

    async def _clean_up(self, in_thread: InThread) -> None:
        try:
            if ended := await in_thread(self.control.abort_stale_uploads):
                self._context.logger.info("%s: gave up %d stale uploads", self._place, ended)
        except S3Error as error:
            self._context.logger.debug("%s: stale uploads cannot be looked for: %s", self._place, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
