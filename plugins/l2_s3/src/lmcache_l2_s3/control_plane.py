"""The control plane: what is about a bucket, by boto3.  Everything here blocks, on whatever thread it is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

from lmcache_l2_s3.answers import Answer, S3Error, answer_of
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.credentials import CONNECT_SECONDS, READ_SECONDS

Value = TypeVar("Value")

LIST_MAX: Final = 1000
DELETE_MAX: Final = 1000
READ_BYTES: Final = 2**20
STALE_UPLOAD: Final = timedelta(days=1)


class Listed(NamedTuple):
    name: str
    size: int


class ListedPage(NamedTuple):
    """`after` is what the next page is asked for with; None on the last one."""

    objects: tuple[Listed, ...]
    after: str | None


class Conditions(NamedTuple):
    """What a store compares before it writes."""

    only_new: bool
    """`If-None-Match: *`: nothing that is there is replaced."""
    only_same: bool
    """`If-Match`: nothing else than what was read is replaced."""
    bare_tags: bool = False
    """It compares entity tags without the quotes that it gives them itself (older Ceph)."""

    def tag(self, etag: str) -> str:
        """As this store wants to have it in `If-Match`."""
        return etag.strip('"') if self.bare_tags else etag


class ControlPlane:
    """One bucket.  Any thread, but `read_whole`.  Raises S3Error."""

    def __init__(self, settings: S3Settings, session: Any, adapter: str) -> None:
        """Opens no connection yet."""
        endpoint = settings.endpoint
        self._adapter: Final = adapter
        self._bucket: Final = endpoint.bucket
        self._prefix: Final = settings.prefix
        self._by_token: Final = settings.s3_enable_s3express  # which lists in no order, and knows no `StartAfter`
        self._new_client: Final = partial(
            boto3.Session(botocore_session=session).client,
            "s3",
            region_name=settings.s3_region,
            endpoint_url=endpoint.service_url,
            use_ssl=endpoint.tls,
            verify=str(settings.ca_file) if settings.ca_file else None,
            config=Config(
                s3={"addressing_style": "path" if endpoint.path_style else "virtual"},
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": 2},
                max_pool_connections=10,
                # Only where an operation requires one: stores other than AWS may not know those of S3's newer kind.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self._client: Final = self._new_client()
        self._reader: Any = None  # made when it is needed, which is seldom

    @property
    def own_names(self) -> str:
        """What names of this adapter's that are not objects begin with."""
        return f"{self._prefix}."

    @property
    def url(self) -> str:
        """Of the store, without the bucket: what AWS's is in this region follows from boto3's data."""
        return str(self._client.meta.endpoint_url)

    def check_bucket(self) -> None:
        """Is it there, and may these credentials use it?"""
        self._ask("asking for the bucket", self._client.head_bucket, Bucket=self._bucket)

    def probe(self, name: str) -> Conditions:
        """Write a small object twice, and remove it, to see whether this may write and what the store compares."""
        data = b"lmcache probe"
        etag = self._ask("writing", self._put, name, data)
        bare_tags = False
        try:
            only_new = not self.put(name, data, IfNoneMatch="*")
            only_same = only_new and not self.put(name, data, IfMatch='"0123456789abcdef0123456789abcdef"')
            if only_same and not self.put(name, data, IfMatch=etag):
                bare_tags = only_same = self.put(name, data, IfMatch=etag.strip('"'))
        finally:
            self._ask("deleting", self._client.delete_object, Bucket=self._bucket, Key=name)
        return Conditions(only_new, only_same, bare_tags)

    def put(self, name: str, data: bytes, **conditions: str) -> bool:
        """Write a small object.  False where a condition did not hold; a store that does not know it says True."""
        try:
            self._ask("writing", self._put, name, data, **conditions)
        except S3Error as error:
            if error.answer in (Answer.EXISTS, Answer.CONFLICT) or (conditions and error.answer is Answer.ABSENT):
                return False
            if conditions and error.answer in (Answer.UNSUPPORTED, Answer.INVALID):
                return True
            raise
        return True

    def get(self, name: str) -> tuple[bytes, str] | None:
        """A small object and its entity tag; None: there is none."""

        def read() -> tuple[bytes, str]:
            got = self._client.get_object(Bucket=self._bucket, Key=name)
            with closing(got["Body"]) as body:
                return body.read(64 * 1024), got.get("ETag", "")

        try:
            return self._ask("reading", read)
        except S3Error as error:
            if error.answer is Answer.ABSENT:
                return None
            raise

    def read_whole(self, name: str, timeout_seconds: float) -> tuple[bytearray, str] | None:
        """An object of any length, over a connection that nothing else was asked on, and its entity tag; None: there is
        none.  One call at a time."""
        ends = time.monotonic() + timeout_seconds
        if self._reader is None:
            self._reader = self._new_client()
        client = self._reader

        def read() -> tuple[bytearray, str]:
            got = client.get_object(Bucket=self._bucket, Key=name)
            data = bytearray()
            with closing(got["Body"]) as body:
                for piece in body.iter_chunks(READ_BYTES):
                    data += piece
                    if time.monotonic() > ends:
                        raise self._error("reading", Answer.TIMEOUT, None, f"more than {timeout_seconds:g} s")
            return data, got.get("ETag", "")

        try:
            return self._ask("reading", read)
        except S3Error as error:
            if error.answer is Answer.ABSENT:
                return None
            raise
        finally:
            client.close()  # its connections: the next call makes a new one

    def remove(self, name: str) -> None:
        self._ask("deleting", self._client.delete_object, Bucket=self._bucket, Key=name)

    def list_page(self, after: str | None, limit: int, below: str = "") -> ListedPage:
        """Objects below the prefix (and `below`), in the order of names but for S3 Express."""
        arguments: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": self._prefix + below,
            "MaxKeys": min(limit, LIST_MAX),
        }
        if after is not None:
            arguments["ContinuationToken" if self._by_token else "StartAfter"] = after
        page = self._ask("listing", self._client.list_objects_v2, **arguments)
        objects = tuple(Listed(each["Key"], each["Size"]) for each in page.get("Contents", ()))
        if not page.get("IsTruncated") or not objects:
            return ListedPage(objects, None)
        return ListedPage(objects, page["NextContinuationToken"] if self._by_token else objects[-1].name)

    def from_cursor(self, cursor: str | None) -> str | None:
        """What `list_page` goes on after.  Raises ValueError for what never was the `after` of a page."""
        if cursor is not None and not self._by_token and not cursor.startswith(self._prefix):
            raise ValueError(f"{self._adapter}: '{cursor[:80]}' is not a cursor of this listing: begin without one")
        return cursor

    def remove_many(self, names: Sequence[str]) -> dict[str, Answer]:
        """Those that could not be removed, and why.  At most DELETE_MAX."""
        given = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        gone = self._ask("deleting", self._client.delete_objects, Bucket=self._bucket, Delete=given)
        faults = ((each.get("Key", ""), each.get("Code", "")) for each in gone.get("Errors", ()))
        return {name: answer_of(500, code) for name, code in faults if code != "NoSuchKey"}

    def abort_stale_uploads(self) -> int:
        """Abort uploads in parts that killed servers left a day ago or longer.  Returns how many there were."""
        uploads = self._ask(
            "listing uploads", self._client.list_multipart_uploads, Bucket=self._bucket, Prefix=self._prefix
        )
        ended = 0
        for upload in uploads.get("Uploads", ()):
            if upload["Key"].startswith(self._prefix) and datetime.now(UTC) - upload["Initiated"] >= STALE_UPLOAD:
                self._ask(
                    "giving up an upload",
                    self._client.abort_multipart_upload,
                    Bucket=self._bucket,
                    Key=upload["Key"],
                    UploadId=upload["UploadId"],
                )
                ended += 1
        return ended

    def close(self) -> None:
        self._client.close()

    def _put(self, name: str, data: bytes, **conditions: str) -> str:
        return str(self._client.put_object(Bucket=self._bucket, Key=name, Body=data, **conditions).get("ETag", ""))

    def _ask(self, action: str, call: Callable[..., Value], *arguments: Any, **named: Any) -> Value:
        try:
            return call(*arguments, **named)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = str(error.response.get("Error", {}).get("Code", ""))
            known = "" if code.isdecimal() else code  # a HEAD has no body: the code is the status again
            raise self._error(action, answer_of(status, known), status, known) from None
        except (ConnectTimeoutError, ReadTimeoutError) as error:
            raise self._error(action, Answer.TIMEOUT, None, type(error).__name__) from None
        except NoCredentialsError as error:
            raise self._error(action, Answer.CREDENTIALS, None, type(error).__name__) from None
        except BotoCoreError as error:
            raise self._error(action, Answer.UNREACHABLE, None, type(error).__name__) from None

    def _error(self, action: str, answer: Answer, status: int | None, detail: str) -> S3Error:
        return S3Error(self._adapter, f"{action} (bucket '{self._bucket}')", answer, status, detail)
