"""The network backends that whole servers are tested with, each as a test sees it: a port, and settings that lead there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmcache_core import HEADER_BYTES, Check, Outcome, check, inspect
from tests.remote.ceph import Ceph
from tests.remote.loop_server import HOST
from tests.remote.redis_servers import redis_server
from tests.remote.s3_servers import BUCKET, S3Server, moto_server, rclone_server

PREFIX: Final = "test/"
OPERATION_SECONDS: Final = 8.0
"""After which an operation counts as failed: shorter than what adapters have, so that tests of silence end."""
LEASE_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Backend:
    """A running server."""

    name: str
    port: int
    settings: Callable[[int, str], Mapping[str, Any]]
    """An adapter's, with its `type`, that lead there through this port of this machine, to objects of this prefix."""
    objects: Callable[[str], dict[str, bytes]]
    """What lies under this prefix, by name, without asking through any proxy."""

    def through(self, port: int, prefix: str = PREFIX, **more: object) -> dict[str, Any]:
        """Settings for `--l2-adapter`."""
        return {**self.settings(port, prefix), **more}

    def whole(self, prefix: str = PREFIX) -> list[int]:
        """Sizes of the objects there; fails on anything that is not whole, but the owner's record."""
        sizes = []
        for name, data in self.objects(prefix).items():
            if name == f"{prefix}.owner":
                continue
            header = inspect(data[:HEADER_BYTES])
            assert not isinstance(header, Check), f"{name}: {header}"
            assert check(data, header.key).outcome is Outcome.DONE, name
            sizes.append(len(data))
        return sizes


def s3(server: S3Server, name: str = "s3") -> Backend:
    """Of any server that speaks S3."""
    host, _, port = server.host.rpartition(":")

    limits = {"operation_timeout_seconds": OPERATION_SECONDS, "owner_lease_seconds": LEASE_SECONDS}

    def settings(through: int, prefix: str) -> Mapping[str, Any]:
        return {"type": "s3", **replace(server, host=f"{host}:{through}").settings(prefix=prefix, **limits)}

    def objects(prefix: str) -> dict[str, bytes]:
        client = server.client()
        try:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=server.bucket, Prefix=prefix)
            names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
            found = {}
            for name in names:
                with suppress(client.exceptions.NoSuchKey):  # deleted since it was listed
                    found[name] = client.get_object(Bucket=server.bucket, Key=name)["Body"].read()
            return found
        finally:
            client.close()

    return Backend(name, int(port), settings, objects)


def s3_of(ceph: Ceph, bucket: str = BUCKET) -> S3Server:
    """The gateway with this bucket, which is made unless it is there."""
    server = S3Server(ceph.endpoint, ceph.access_key, ceph.secret_key, bucket)
    client = server.client()
    try:
        client.create_bucket(Bucket=bucket)
    finally:
        client.close()
    return server


@contextmanager
def _redis(folder: Path) -> Iterator[Backend]:
    limits = {"timeout_seconds": OPERATION_SECONDS, "owner_lease_seconds": LEASE_SECONDS}
    with redis_server(folder) as server, server.client() as client:

        def settings(through: int, prefix: str) -> Mapping[str, Any]:
            return {"type": "redis", "key_prefix": prefix, "host": HOST, "port": through, **limits}

        def objects(prefix: str) -> dict[str, bytes]:
            names = list(client.scan_iter(match=f"{prefix}*", count=1000))
            return {name.decode(): data for name in names if (data := client.get(name)) is not None}

        yield Backend("redis", server.port, settings, objects)


@contextmanager
def running(name: str, folder: Path) -> Iterator[Backend]:
    """The backend of this name: `s3` (moto), `s3-rclone`, `s3-ceph` or `redis`."""
    with ExitStack() as stack:
        match name:
            case "s3":
                yield s3(stack.enter_context(moto_server(folder)))
            case "s3-rclone":
                yield s3(stack.enter_context(rclone_server(folder)), name)
            case "s3-ceph":
                yield s3(s3_of(stack.enter_context(Ceph(folder / "ceph"))), name)
            case "redis":
                yield stack.enter_context(_redis(folder))
            case _:
                raise ValueError(f"no backend is called {name!r}")


def flags(*adapters: Mapping[str, Any]) -> list[str]:
    """For the command line."""
    return [part for adapter in adapters for part in ("--l2-adapter", json.dumps(adapter))]
