"""The network backends of the remote benchmark: how each is started, the adapter's settings, and its bare client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.bare_lm import bare_lm, lm_store
from benchmarks.bare_mooncake import BareMooncake, bare_mooncake
from benchmarks.bare_nixl import BareNixl, bare_nixl
from benchmarks.bare_redis import BareRedis, bare_redis
from benchmarks.bare_s3 import BareS3, bare_s3
from benchmarks.l2_pairs import Side
from benchmarks.peer import BenchmarkError
from lmcache_tools.bench.memory import BenchMemory
from tests.remote.ceph import Ceph, missing_programs
from tests.remote.mooncake_master import LoopbackNamespace, MooncakeMaster, MooncakeMember, setup_of, why_not
from tests.remote.redis_servers import HOST, redis_server
from tests.remote.s3_servers import BUCKET, S3Server, moto_server, rclone_server

_MEMORY_FACTOR: Final = 3
"""How much more than the objects a store in memory is given: both sides' are there at a time, and it evicts before it is
full."""


class Load(NamedTuple):
    """What a measurement moves: a number of objects, `depth` of them at a time."""

    object_bytes: int
    objects: int
    depth: int


@dataclass(frozen=True, slots=True)
class Backend:
    """A running one.  `partner` makes the bare client, for the adapter's memory; `undo` ends it."""

    settings: Mapping[str, Any]
    partner: Callable[[BenchMemory, ExitStack], Side]
    on_disk: bool = False
    """What was written must be on the disk before the next measurement, or that pays for it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`start` gets a folder of its own."""

    name: str
    describes: str
    start: Callable[[Path, Load], AbstractContextManager[Backend]]
    partner: str
    """What the bare client calls itself."""
    aim: float
    """Share of the bare client that the adapter should reach."""
    depths: tuple[int, ...] = (16,)


@contextmanager
def _redis(folder: Path, load: Load) -> Iterator[Backend]:
    with redis_server(folder) as server:
        yield Backend(
            {"type": "redis", "host": HOST, "port": server.port, "num_connections": load.depth},
            lambda memory, undo: bare_redis(HOST, server.port, load.depth, undo),
        )


@contextmanager
def _lm(folder: Path, load: Load) -> Iterator[Backend]:
    with lm_store(folder, _MEMORY_FACTOR * load.object_bytes * load.objects) as port:
        yield Backend(
            {"type": "lm", "host": HOST, "port": port, "num_connections": load.depth},
            lambda memory, undo: bare_lm(HOST, port, load.depth, undo),
        )


@contextmanager
def _nixl(folder: Path, load: Load) -> Iterator[Backend]:
    (folder / "pool").mkdir()
    settings = {
        "type": "nixl_store",
        "backend": "POSIX",
        "pool_size": load.objects + 4,
        "slot_bytes": load.object_bytes,
        "backend_params": {"file_path": str(folder / "pool"), "use_direct_io": "false"},
    }
    yield Backend(
        settings,
        lambda memory, undo: bare_nixl(folder, False, load.object_bytes, load.depth, load.objects, memory, undo),
        on_disk=True,
    )


@contextmanager
def _mooncake(folder: Path, load: Load) -> Iterator[Backend]:
    if reason := why_not():
        raise BenchmarkError(reason)
    with ExitStack() as undo:
        namespace = LoopbackNamespace()
        undo.callback(namespace.close)
        undo.enter_context(namespace.entered())
        master = MooncakeMaster(folder)
        undo.callback(master.kill)
        master.start()
        # Another process has the memory: what lies with a member itself is copied, and not sent.
        member = MooncakeMember(master, folder, _MEMORY_FACTOR * load.object_bytes * load.objects)
        undo.callback(member.kill)
        member.start()
        setup = setup_of(master, 0)
        yield Backend(
            {"type": "mooncake_store", **setup},
            lambda memory, ends: bare_mooncake(setup, load.depth, memory, ends),
        )


def _s3_backend(server: S3Server, load: Load) -> Backend:
    """The adapter has its default number of threads."""
    return Backend(
        {"type": "s3", **server.settings(s3_num_io_threads=None)},
        lambda memory, undo: undo.enter_context(
            bare_s3(server.host, server.bucket, server.region, server.access_key, server.secret_key, depth=load.depth)
        ),
        on_disk=server.data is not None,
    )


@contextmanager
def _moto(folder: Path, load: Load) -> Iterator[Backend]:
    with moto_server(folder) as server:
        yield _s3_backend(server, load)


@contextmanager
def _rclone(folder: Path, load: Load) -> Iterator[Backend]:
    with rclone_server(folder) as server:
        yield _s3_backend(server, load)


@contextmanager
def _ceph(folder: Path, load: Load) -> Iterator[Backend]:
    if missing := missing_programs():
        raise BenchmarkError(f"not installed: {', '.join(missing)}")
    with Ceph(folder) as ceph:
        server = S3Server(ceph.endpoint, ceph.access_key, ceph.secret_key)
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield _s3_backend(server, load)


SUBJECTS: Final = (
    Subject(
        "s3_moto", "`s3` on moto, which keeps objects in memory; bare: awscrt's S3 client", _moto, BareS3.name, 0.95
    ),
    Subject("s3_rclone", "`s3` on rclone's S3 server, which keeps files; bare: awscrt's", _rclone, BareS3.name, 0.95),
    Subject("s3_ceph", "`s3` on Ceph's gateway, objects in memory; bare: awscrt's", _ceph, BareS3.name, 0.95),
    Subject("nixl_store", "POSIX through the page cache; bare: prepared transfers of NIXL", _nixl, BareNixl.name, 0.95),
    Subject(
        "mooncake_store",
        "a master, and the memory of another process, over TCP; bare: batch calls on registered memory",
        _mooncake,
        BareMooncake.name,
        0.90,
    ),
    Subject(
        "redis",
        "one server, as many connections as objects in flight; bare: a blocking socket and a thread for each, recv_into",
        _redis,
        BareRedis.name,
        0.90,
        depths=(16, 1),
    ),
    Subject(
        "lm",
        "`lmcache store-server` in memory, as many connections as objects in flight; bare: as for redis",
        _lm,
        BareRedis.name,
        0.90,
        depths=(16, 1),
    ),
)
