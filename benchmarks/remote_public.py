"""`s3` beside the public server's `s3`, by the loop that its `lmcache bench l2` has: batches, each waited for.

The public adapter speaks to a bucket in the host's name and takes that name for its address, too, so it needs a store to
which `127.0.0.1:port` is a bucket: rclone's, configured so, calls it by what is before the first dot.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks import l2_public
from benchmarks.l2_cell import MIB, Cell, Speed
from benchmarks.l2_lane import Runner, opened, settle
from benchmarks.l2_pairs import partner_of
from benchmarks.peer import BenchmarkError
from benchmarks.remote_sides import ServedLane
from benchmarks.remote_subjects import Load
from benchmarks.results import Results
from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_devkit import free_ports
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.objects import BenchObjects
from tests.remote.mooncake_master import wait_for
from tests.remote.s3_servers import REGION, rclone_server

NAME: Final = "s3_batches"
PARTNER: Final = "public s3"
DESCRIBES: Final = (
    "`s3` and the public LMCache 0.5.6 server's `s3`, each on an rclone of its own, in batches that are waited for, as its "
    "`lmcache bench l2` has them; that checks nothing of what it loads"
)
AIM: Final = 1.0
_BUCKET: Final = HOST.partition(".")[0]


@contextmanager
def public_turns(
    folder: Path, load: Load, plugins: LoadedPlugins, interruption: Interruption, results: Results
) -> Iterator[Callable[[int], None]]:
    """What measures one pair; a negative number is not kept.  Raises BenchmarkError, LMCacheError, KeyboardInterrupt."""
    if not l2_public.is_installed():
        raise BenchmarkError("the public server is not installed: make setup")
    batches = max(2, load.objects // load.depth)  # the first of each warms up
    count, size = batches * load.depth, load.object_bytes
    with ExitStack() as undo:
        server = undo.enter_context(rclone_server(folder))
        settings = {"type": "s3", **server.settings(s3_num_io_threads=64)}
        lane, memory = undo.enter_context(opened(settings, plugins, count * size))
        objects = BenchObjects(memory.arena.region, size, size, count)
        runner = Runner(ServedLane(lane), load.depth, interruption)
        theirs = undo.enter_context(_RcloneByHost(folder / "by-host").running())

        def own() -> dict[str, Speed]:
            objects.renew()
            speeds = {verb: _in_batches(runner, objects, verb, load.depth) for verb in ("store", "load")}
            runner.clear()
            return speeds

        def public() -> dict[str, Speed]:
            speeds = l2_public.run(theirs.settings, size // MIB, load.depth, batches - 1)
            theirs.clear()
            return speeds

        def turn(number: int) -> None:
            sides = [(NAME, own), (partner_of(NAME, PARTNER), public)]
            for subject, side in reversed(sides) if number % 2 else sides:
                settle(drops_cache=False)
                speeds = side()
                for verb, speed in speeds.items() if number >= 0 else ():
                    results.add(subject, number, speed.figures(Cell("loopback", size // MIB, load.depth, verb)))

        yield turn


def _in_batches(runner: Runner, objects: BenchObjects, verb: str, depth: int) -> Speed:
    """Raises BenchmarkError where a step fails or an object comes back wrong."""
    steps = objects.stores() if verb == "store" else objects.loads()
    batches = [steps[at : at + depth] for at in range(0, len(steps), depth)]
    seconds = 0.0
    for number, batch in enumerate(batches):
        speed = runner.run(batch)
        if number:
            seconds += sum(step.buffer.length for step in batch) / 1e9 / speed.gb_per_second
    if wrong := list(objects.wrong(steps)):
        raise BenchmarkError(f"{NAME}: {len(wrong)} objects came back wrong, the first: {wrong[0]}")
    return Speed(sum(step.buffer.length for batch in batches[1:] for step in batch) / 1e9 / seconds)


class _RcloneByHost:
    """rclone's S3 server with buckets in the host's name, and one bucket, which is what it takes its own address for."""

    def __init__(self, folder: Path) -> None:
        self._data: Final = folder / "data"
        self._bucket: Final = self._data / _BUCKET
        self._bucket.mkdir(parents=True)
        (self._port,) = free_ports(1)
        self._key: Final = secrets.token_hex(8)
        self._secret: Final = secrets.token_hex(20)
        beside = Path(sys.executable).with_name("rclone")
        command = [
            str(beside) if beside.exists() else "rclone", "serve", "s3", str(self._data), "--addr", self.address,
            "--config", str(folder / "rclone.conf"), "--auth-key", f"{self._key},{self._secret}", "--no-modtime",
            "--force-path-style=false",
        ]  # fmt: skip
        self._process: Final = ChildProcess("rclone", command, folder / "rclone.log", quiet_environment())

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def settings(self) -> dict[str, object]:
        """For the public server's `s3`."""
        return {
            "type": "s3",
            "s3_endpoint": self.address,
            "s3_region": REGION,
            "aws_access_key_id": self._key,
            "aws_secret_access_key": self._secret,
            "disable_tls": True,
        }

    def clear(self) -> None:
        """Its benchmark leaves what it stored."""
        shutil.rmtree(self._bucket)
        self._bucket.mkdir()

    @contextmanager
    def running(self) -> Iterator[_RcloneByHost]:
        try:
            self._process.start()
            wait_for(self._listens, self._process)
            yield self
        finally:
            self._process.kill()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((HOST, self._port)) == 0
