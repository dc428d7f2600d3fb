"""The objects of a bucket, behind an adapter's back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from botocore.exceptions import ClientError

from lmcache_core import ObjectKey, media_path
from lmcache_devkit.l2.media import Media
from tests.remote.s3_servers import S3Server


class BucketMedia(Media):
    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def read(self, key: ObjectKey) -> bytes | None:
        try:
            got = self._client.get_object(Bucket=self._bucket, Key=self._name(key))
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        with got["Body"] as body:
            data: bytes = body.read()
        return data

    def write(self, key: ObjectKey, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._name(key), Body=data)

    def remove(self, key: ObjectKey) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._name(key))

    def _name(self, key: ObjectKey) -> str:
        return self._prefix + media_path(key)


def stopped_process(server: S3Server) -> Callable[[], AbstractContextManager[None]]:
    """Within the context the server answers nothing: its process is stopped."""

    @contextmanager
    def stalled() -> Iterator[None]:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(server.pid, signal.SIGCONT)

    return stalled
