"""The data plane: requests for single objects, by the AWS Common Runtime, on its own threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Final, Protocol

from awscrt.auth import AwsSigningAlgorithm
from awscrt.exceptions import AwsCrtError
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup, TlsContextOptions
from awscrt.s3 import (
    S3ChecksumAlgorithm,
    S3ChecksumConfig,
    S3ChecksumLocation,
    S3Client,
    S3RequestTlsMode,
    S3RequestType,
    S3RetryConfig,
    S3RetryMode,
    create_default_s3_signing_config,
)

from lmcache_core import HEADER_BYTES, BorrowedBuffer
from lmcache_l2_s3.answers import Answer, Reply, answer_of, answer_of_fault, code_in
from lmcache_l2_s3.borrowed_copy import BorrowedSink, BorrowedSource, BorrowEndedError, MisfitError, PageSink
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.credentials import CONNECT_SECONDS

MIB: Final = 2**20
PART_BYTES: Final = 8 * MIB
"""Where nothing is asked for: as much as the client itself takes by default."""
_CHECKSUMS: Final = {"crc32c": S3ChecksumAlgorithm.CRC32C, "crc64nvme": S3ChecksumAlgorithm.CRC64NVME}


ONLY_NEW: Final = ("if-none-match", "*")


def only_same(etag: str) -> tuple[str, str]:
    """Nothing else than this version of an object is replaced."""
    return "if-match", etag


class Ends(Protocol):
    """What has to do with a borrowed buffer until a request has ended."""

    def end(self) -> None: ...


class CrtClient:
    """One bucket.  Methods from any thread; the `async` ones on one loop.  Nothing raises: every end is a `Reply`.

    A request that is cancelled is waited for: its coroutine ends when no thread of the client can touch the buffer."""

    def __init__(self, settings: S3Settings, provider: Any, host: str, path: str) -> None:
        """`host` is the host of requests, `path` the prefix of an object's name.  Opens no connection yet."""
        endpoint = settings.endpoint
        self._host: Final = host
        self._path: Final = path
        self._new_object: Final = _headers_of_new_objects(settings)
        algorithm = _CHECKSUMS.get(settings.checksum)
        self._checksum_of_put: Final = (
            S3ChecksumConfig(algorithm=algorithm, location=S3ChecksumLocation.TRAILER) if algorithm else None
        )
        self._checksum_of_get: Final = S3ChecksumConfig(validate_response=True) if algorithm else None
        group = EventLoopGroup(settings.s3_num_io_threads)
        bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
        signing = create_default_s3_signing_config(region=settings.s3_region, credential_provider=provider)
        if settings.s3_enable_s3express:
            signing = signing.replace(algorithm=AwsSigningAlgorithm.V4_S3EXPRESS, service="s3express")
        part_bytes = settings.part_size_mb * MIB if settings.part_size_mb else None
        self._client = S3Client(
            bootstrap=bootstrap,
            region=settings.s3_region,
            tls_mode=S3RequestTlsMode.ENABLED if endpoint.tls else S3RequestTlsMode.DISABLED,
            tls_connection_options=_tls(settings, host) if endpoint.tls else None,
            signing_config=signing,
            part_size=part_bytes,
            # One request where it can be: an upload in parts takes two more, and is visible only after the last.
            multipart_upload_threshold=max(part_bytes or PART_BYTES, 2 * PART_BYTES),
            throughput_target_gbps=settings.throughput_target_gbps,
            enable_s3express=settings.s3_enable_s3express,
            memory_limit=settings.memory_limit_gb * 2**30,
            retry_config=S3RetryConfig(retry_mode=S3RetryMode.NONE),  # the caller retries, within its budget
            connect_timeout_ms=CONNECT_SECONDS * 1000,
        )
        self._ended: Final = (self._client.shutdown_event, bootstrap.shutdown_event, group.shutdown_event)

    async def put(self, name: str, buffer: BorrowedBuffer, condition: tuple[str, str] | None = None) -> Reply:
        """Store the buffer.  Under ONLY_NEW it is EXISTS where something is there; under `only_same`, where it is another
        version, and ABSENT where it is gone.  The store must know such conditions."""
        source = BorrowedSource(buffer)
        headers = [("content-length", str(buffer.length)), *self._new_object, *([condition] if condition else [])]
        return await self._send(
            self._request("PUT", name, headers, source),
            source,
            type=S3RequestType.PUT_OBJECT,
            checksum_config=self._checksum_of_put,
        )

    async def get(self, name: str, buffer: BorrowedBuffer) -> Reply:
        """Load into the buffer.  OK: every byte of the object is there; WRONG_LENGTH: it has another length."""
        sink = BorrowedSink(buffer, HEADER_BYTES)
        reply = await self._send(
            self._request("GET", name, []),
            sink,
            type=S3RequestType.GET_OBJECT,
            checksum_config=self._checksum_of_get,
            on_headers=sink.on_headers,
            on_body=sink.on_body,
        )
        if reply.answer is Answer.OK and not sink.is_whole:
            return Reply(Answer.CORRUPTED, reply.status, f"the answer broke off after {sink.received} bytes")
        return reply._replace(length=sink.received)

    async def head(self, name: str) -> Reply:
        page = PageSink(0)
        reply = await self._send(
            self._request("HEAD", name, []),
            type=S3RequestType.DEFAULT,
            operation_name="HeadObject",
            on_headers=page.on_headers,
        )
        return reply._replace(length=page.length)

    async def delete(self, name: str) -> Reply:
        return await self._send(
            self._request("DELETE", name, []), type=S3RequestType.DEFAULT, operation_name="DeleteObject"
        )

    async def peek(self, name: str) -> tuple[Reply, bytes]:
        """The header page of an object, or as much of it as there is, how long the object is, and which version."""
        page, request = self._peek(name)
        reply = await self._finish(request)
        return reply._replace(length=page.length, etag=page.etag), page.page

    def peek_blocking(self, names: list[str], timeout_seconds: float) -> list[tuple[Reply, bytes]]:
        """The same for several, at the same time, on a thread that may wait."""
        started = [self._peek(name) for name in names]
        found = []
        for page, request in started:
            try:
                request.finished_future.result(timeout_seconds)
                reply = Reply(Answer.OK)
            except TimeoutError:
                request.cancel()
                reply = Reply(Answer.TIMEOUT)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a reply
                reply = _reply_of(error)
            found.append((reply._replace(length=page.length), page.page))
        return found

    def close(self, timeout_seconds: float) -> bool:
        """Blocks until the client's threads and connections are gone; False: they are not within this time.  Every request
        must have ended."""
        del self._client
        return all(_wait(event, timeout_seconds) for event in self._ended)

    def _peek(self, name: str) -> tuple[PageSink, Any]:
        page = PageSink(HEADER_BYTES)
        request = self._client.make_request(
            request=self._request("GET", name, [("range", f"bytes=0-{HEADER_BYTES - 1}")]),
            type=S3RequestType.DEFAULT,
            operation_name="GetObject",
            on_headers=page.on_headers,
            on_body=page.on_body,
        )
        return page, request

    def _request(
        self, method: str, name: str, headers: list[tuple[str, str]], body: BorrowedSource | None = None
    ) -> Any:
        return HttpRequest(method, f"{self._path}/{name}", HttpHeaders([("host", self._host), *headers]), body)

    async def _send(self, request: Any, borrow: Ends | None = None, **arguments: Any) -> Reply:
        try:
            return await self._finish(self._client.make_request(request=request, **arguments))
        finally:
            if borrow is not None:
                borrow.end()

    async def _finish(self, request: Any) -> Reply:
        """Until the request has ended, also where this is cancelled: then it is cancelled, and waited for."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        finished: Future[None] = request.finished_future
        finished.add_done_callback(lambda _: _tell(loop, ended))
        cancellation: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait((ended,))  # which does not cancel what it waits for
            except asyncio.CancelledError as error:
                cancellation = error
                request.cancel()
        try:
            if cancellation is not None:
                raise cancellation
        finally:
            del cancellation  # it holds this frame
        fault = finished.exception()
        return Reply(Answer.OK) if fault is None else _reply_of(fault)


def _tell(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(ended.set_result, None)
    except RuntimeError:
        pass  # the loop has ended, and no waiter is left


def _reply_of(error: BaseException) -> Reply:
    if isinstance(error, MisfitError):
        return Reply(Answer.WRONG_LENGTH, length=error.length)
    if isinstance(error, BorrowEndedError):
        return Reply(Answer.CANCELLED)
    status = getattr(error, "status_code", None)
    if status is not None:
        code = code_in(getattr(error, "body", None))
        return Reply(answer_of(status, code), status, code)
    name = error.name if isinstance(error, AwsCrtError) else type(error).__name__
    return Reply(answer_of_fault(name), None, name)


def _wait(event: threading.Event, timeout_seconds: float) -> bool:
    return event.wait(timeout_seconds)


def _tls(settings: S3Settings, host: str) -> Any:
    options = TlsContextOptions()
    if settings.ca_file is not None:
        options.override_default_trust_store_from_path(None, str(settings.ca_file))
    connection = ClientTlsContext(options).new_connection_options()
    connection.set_server_name(host.partition(":")[0])
    connection.set_alpn_list(["h2", "http/1.1"] if settings.s3_prefer_http2 else ["http/1.1"])
    return connection


def _headers_of_new_objects(settings: S3Settings) -> list[tuple[str, str]]:
    headers = [("content-type", "application/octet-stream")]
    if settings.storage_class:
        headers.append(("x-amz-storage-class", settings.storage_class))
    if settings.server_side_encryption:
        headers.append(("x-amz-server-side-encryption", settings.server_side_encryption))
    if settings.sse_kms_key_id:
        headers.append(("x-amz-server-side-encryption-aws-kms-key-id", settings.sse_kms_key_id))
    return headers
