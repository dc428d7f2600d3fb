"""The network backends of the remote benchmark: how each is started, what the adapter is told, and its bare client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bare_mooncake import bare_mooncake
from benchmarks.bare_nixl import bare_nixl
from benchmarks.bare_redis import BareRedis
from benchmarks.bare_s3 import bare_s3
from benchmarks.l2_pairs import Side
from benchmarks.peer import BenchmarkError
from lmcache_core.app.bench.memory import BenchMemory
from tests.remote.ceph import Ceph, missing_programs
from tests.remote.mooncake_master import LoopbackNamespace, MooncakeMaster, setup_of, why_not
from tests.remote.redis_servers import HOST, redis_server
from tests.remote.s3_servers import BUCKET, S3Server, moto_server, rclone_server

_MEMORY_FACTOR: Final = 4
"""How much more than the objects a store in memory is given: it fragments, and evicts before it is full."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A running one.  `partner` makes the bare client, for the adapter's memory and with so many objects in flight."""

    settings: Mapping[str, Any]
    partner: Callable[[BenchMemory, int, ExitStack], Side]


@dataclass(frozen=True, slots=True)
class Subject:
    """`start` gets a folder of its own, the bytes of an object, and how many are stored at a time."""

    name: str
    describes: str
    start: Callable[[Path, int, int], AbstractContextManager[Backend]]
    partners: tuple[str, ...]
    """What the bare client may be called."""
    aim: float
    """Share of the bare client that the adapter should reach."""


@contextmanager
def _redis(folder: Path, size: int, count: int) -> Iterator[Backend]:
    with redis_server(folder) as server:
        yield Backend(
            {"type": "redis", "host": HOST, "port": server.port},
            lambda memory, depth, undo: BareRedis(HOST, server.port, depth),
        )


@contextmanager
def _nixl(folder: Path, size: int, count: int) -> Iterator[Backend]:
    (folder / "pool").mkdir()
    settings = {
        "type": "nixl_store",
        "backend": "POSIX",
        "pool_size": count + 4,
        "slot_bytes": size,
        "backend_params": {"file_path": str(folder / "pool"), "use_direct_io": "false"},
    }
    yield Backend(settings, lambda memory, depth, undo: bare_nixl(folder, False, size, depth, count, memory, undo))


@contextmanager
def _mooncake(folder: Path, size: int, count: int) -> Iterator[Backend]:
    if reason := why_not():
        raise BenchmarkError(reason)
    segment_bytes = _MEMORY_FACTOR * size * count
    with ExitStack() as undo:
        namespace = LoopbackNamespace()
        undo.callback(namespace.close)
        undo.enter_context(namespace.entered())
        master = MooncakeMaster(folder)
        undo.callback(master.kill)
        master.start()
        setup = setup_of(master, segment_bytes)
        yield Backend(
            {"type": "mooncake_store", **setup},
            lambda memory, depth, ends: bare_mooncake(setup | {"global_segment_size": "0"}, depth, memory, ends),
        )


def _s3_backend(server: S3Server) -> Backend:
    return Backend(
        {"type": "s3", **server.settings(s3_num_io_threads=64)},
        lambda memory, depth, undo: undo.enter_context(
            bare_s3(server.host, server.bucket, server.region, server.access_key, server.secret_key, depth=depth)
        ),
    )


@contextmanager
def _moto(folder: Path, size: int, count: int) -> Iterator[Backend]:
    with moto_server(folder) as server:
        yield _s3_backend(server)


@contextmanager
def _rclone(folder: Path, size: int, count: int) -> Iterator[Backend]:
    with rclone_server(folder) as server:
        yield _s3_backend(server)


@contextmanager
def _ceph(folder: Path, size: int, count: int) -> Iterator[Backend]:
    if missing := missing_programs():
        raise BenchmarkError(f"not installed: {', '.join(missing)}")
    with Ceph(folder) as ceph:
        server = S3Server(ceph.endpoint, ceph.access_key, ceph.secret_key)
        server.client().create_bucket(Bucket=BUCKET)
        yield _s3_backend(server)


SUBJECTS: Final = (
    Subject(
        "s3_moto", "`s3` on moto, which keeps objects in memory; bare: awscrt's S3 client", _moto, ("awscrt",), 0.95
    ),
    Subject("s3_rclone", "`s3` on rclone's S3 server, which keeps files; bare: awscrt's", _rclone, ("awscrt",), 0.95),
    Subject("s3_ceph", "`s3` on Ceph's gateway, objects in memory; bare: awscrt's", _ceph, ("awscrt",), 0.95),
    Subject(
        "nixl_store", "POSIX through the page cache; bare: prepared transfers of NIXL", _nixl, ("bare NIXL",), 0.95
    ),
    Subject(
        "mooncake_store",
        "a master, memory of the server itself; bare: batch calls on registered memory",
        _mooncake,
        ("batch calls",),
        0.90,
    ),
    Subject("redis", "one server; bare: a socket for each object in flight, recv_into", _redis, ("raw sockets",), 0.90),
)
