"""The bare CRT client on a bucket, as the measure of what the store and the client do without an adapter.

It does what a client of S3 has to and no more: a request for each object, `depth` of them at a time, bodies read from and
copied into the buffers of the steps.  It keeps no index, looks nothing up, and checks nothing but that requests succeed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from awscrt.auth import AwsCredentialsProvider
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType, create_default_s3_signing_config

from benchmarks.l2_cell import Speed
from benchmarks.peer import BenchmarkError
from lmcache_core import BorrowedBuffer
from lmcache_tools.bench.lane import Step, Verb

PATIENCE_SECONDS: Final = 60.0
GBPS: Final = 10.0


class BareS3:
    """A plain-HTTP store, the bucket in the path.  Use `bare_s3`, which closes it."""

    name: Final = "awscrt"

    def __init__(self, host: str, bucket: str, region: str, access_key: str, secret_key: str, depth: int) -> None:
        group = EventLoopGroup()
        bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
        credentials = AwsCredentialsProvider.new_static(access_key, secret_key)
        self._host: Final = host
        self._path: Final = f"/{bucket}/bare"
        self._depth: Final = depth
        self._client: Any = S3Client(
            bootstrap=bootstrap,
            region=region,
            tls_mode=S3RequestTlsMode.DISABLED,
            signing_config=create_default_s3_signing_config(region=region, credential_provider=credentials),
            throughput_target_gbps=GBPS,
        )
        self._ended: Final = (self._client.shutdown_event, bootstrap.shutdown_event, group.shutdown_event)
        self._stored: Final = set[str]()

    def run(self, steps: Sequence[Step]) -> Speed:
        """Raises BenchmarkError when a request fails."""
        begin = {Verb.STORE: self._put, Verb.LOAD: self._get}
        busy, clock = time.process_time(), time.perf_counter()
        self._all([partial(begin[step.verb], step) for step in steps])
        seconds, busy = time.perf_counter() - clock, time.process_time() - busy
        gigabytes = sum(step.buffer.length for step in steps) / 1e9
        return Speed(gigabytes / seconds, busy / gigabytes)

    def clear(self) -> None:
        """Raises BenchmarkError when something stays."""
        self._all([partial(self._delete, name) for name in sorted(self._stored)])
        self._stored.clear()

    def close(self) -> None:
        self._client = None
        for event in self._ended:
            event.wait(PATIENCE_SECONDS)

    def _all(self, begins: Sequence[Callable[[], Future[None]]]) -> None:
        """Nothing touches a buffer any more when it ends, however that is."""
        ended = SimpleQueue[Future[None]]()
        running, fault = 0, None
        for begin in begins:
            if running == self._depth:
                running, fault = running - 1, self._fault_of_next(ended)
            if fault is not None:
                break
            begin().add_done_callback(ended.put)
            running += 1
        for _ in range(running):
            fault = self._fault_of_next(ended) or fault
        if fault is not None:
            raise BenchmarkError(f"{self.name}: a request to {self._host} failed: {fault}")

    def _fault_of_next(self, ended: SimpleQueue[Future[None]]) -> str | None:
        """Waits for a request to end.  Raises BenchmarkError when none does for too long."""
        try:
            error = ended.get(timeout=PATIENCE_SECONDS).exception()
        except Empty:
            raise BenchmarkError(f"{self.name}: {self._host} did not answer within {PATIENCE_SECONDS:g} s") from None
        return None if error is None else str(getattr(error, "status_code", None) or error)

    def _put(self, step: Step) -> Future[None]:
        self._stored.add(_name(step))
        headers = [("content-length", str(step.buffer.length)), ("content-type", "application/octet-stream")]
        return self._send("PUT", _name(step), headers, _Body(step.buffer), type=S3RequestType.PUT_OBJECT)

    def _get(self, step: Step) -> Future[None]:
        address, length = step.buffer.address, step.buffer.length

        def on_body(chunk: bytes, offset: int, **_: Any) -> None:
            if offset + len(chunk) > length:
                raise BenchmarkError(f"the store sent more than {length} bytes")
            ctypes.memmove(address + offset, chunk, len(chunk))

        return self._send("GET", _name(step), [], None, type=S3RequestType.GET_OBJECT, on_body=on_body)

    def _delete(self, name: str) -> Future[None]:
        return self._send("DELETE", name, [], None, type=S3RequestType.DEFAULT, operation_name="DeleteObject")

    def _send(
        self, method: str, name: str, headers: list[tuple[str, str]], body: _Body | None, **more: Any
    ) -> Future[None]:
        request = HttpRequest(method, f"{self._path}/{name}", HttpHeaders([("host", self._host), *headers]), body)
        finished: Future[None] = self._client.make_request(request=request, **more).finished_future
        return finished


class _Body:
    """A buffer as the client reads it."""

    def __init__(self, buffer: BorrowedBuffer) -> None:
        self._buffer = buffer
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        raise BenchmarkError("the client was to fill its own memory")

    def readinto(self, target: memoryview) -> int:
        size = min(len(target), self._buffer.length - self._at)
        if size:
            ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(target)), self._buffer.address + self._at, size)
            self._at += size
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._buffer.length)[whence] + offset
        return self._at


def _name(step: Step) -> str:
    return step.key.object_id.hex()


@contextmanager
def bare_s3(host: str, bucket: str, region: str, access_key: str, secret_key: str, *, depth: int) -> Iterator[BareS3]:
    """Opens no connection before its first request.  Deletes what it stored, and ends its threads."""
    side = BareS3(host, bucket, region, access_key, secret_key, depth)
    try:
        yield side
    finally:
        try:
            side.clear()
        finally:
            side.close()
