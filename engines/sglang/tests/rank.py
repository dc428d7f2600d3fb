"""One rank of an engine with a cache in its own process, without SGLang:
`python -m engines.sglang.tests.rank SETTINGS RANK RANKS LINKS FILE`, where ranks meet by FILE.

The first line says where it has connected to, or why it could not.  Then it reads commands as lines of JSON,
`[name, argument]`, and answers each with a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from lmcache_engine.in_process import ServedCache
    from lmcache_sglang.settings import LinkerSettings

ROOT: Final = Path(__file__).parents[3]
HEARTBEAT_SECONDS: Final = 0.5


class Rank:
    """`with Rank(settings, ...) as rank:`"""

    def __init__(
        self, settings: Mapping[str, Any], rank: int = 0, ranks: int = 1, *, links: int = 1, meet: Path, folder: Path
    ) -> None:
        """`links`: of each rank, one for each pool.  `folder`: its TMPDIR."""
        command = [
            sys.executable,
            "-m",
            "engines.sglang.tests.rank",
            json.dumps(settings),
            str(rank),
            str(ranks),
            str(links),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LMCACHE_")}
        self.process = subprocess.Popen(
            [*command, str(meet)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            bufsize=1,
            env=environment | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.process:
            if self.process.stdin and self.process.poll() is None:
                self.process.stdin.close()
                if error is not None:
                    self.process.kill()

    def ask(self, name: str, argument: Any = None) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([name, argument]) + "\n")
        return self.heard()

    def heard(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the rank has ended with {self.process.wait(10)}"
        return json.loads(line)


def joined(
    settings: LinkerSettings, rank: int, ranks: int, links: int, meet: str
) -> tuple[LinkerSettings, ServedCache | None]:
    """A rank without others needs no torch, whose import takes longer than most tests."""
    from lmcache_sglang import in_process

    if ranks == 1:
        cache = in_process._opened(settings, ranks, links, 0)
        return replace(settings, url=cache.url), cache
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{meet}", timedelta(seconds=60), ranks, rank)
    return in_process.joined_by(settings, distributed.group.WORLD, links, 0)


def main(given: str, rank: str, ranks: str, links: str, meet: str) -> None:
    from engines.sglang.tests.test_page_link import LAYOUT, PAGE_BYTES, hashes, store
    from lmcache_sglang.page_link import PageLink
    from lmcache_sglang.settings import LinkerSettings

    try:
        settings, cache = joined(LinkerSettings.read(json.loads(given)), int(rank), int(ranks), int(links), meet)
    except Exception as error:  # noqa: BLE001 - it is what a test asks about
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    link = PageLink(settings, f"model of {rank}", LAYOUT)
    more: list[PageLink] = []
    print(json.dumps({"url": settings.url}), flush=True)

    def read(number: int) -> bool:
        """Whether all of three pages are there, with the bytes that `store` gave them."""
        pages, request = hashes(str(number), 3), f"r{number}"
        if link.lookup(request, pages) != len(pages):
            link.end(request)
            return False
        with ExitStack() as stack:
            stack.callback(link.end, request)
            places = stack.enter_context(link.reading(request, pages))
            return all(bytes(place) == bytes([number]) * PAGE_BYTES for place in places)

    def lose(_: Any) -> None:
        """What happens to ranks that were frozen for too long."""
        assert cache is not None
        workers = cache.cache._server.parts.engine_port.workers
        for each in workers.registered():
            workers.unregister(each.instance_id, "test")

    def connect(_: Any) -> bool:
        """For another pool."""
        more.append(PageLink(settings, f"windows of {rank}", LAYOUT))
        return more[-1].is_ready()

    commands: dict[str, Callable[[Any], Any]] = {
        "store": lambda number: store(link, hashes(str(number), 3), number),
        "read": read,
        "ready": lambda _: link.is_ready(),
        "segment": lambda _: link._registered().segment.name,
        "status": lambda _: cache.cache.status() if cache else None,
        "lose": lose,
        "connect": connect,
    }
    for line in sys.stdin:
        name, argument = json.loads(line)
        print(json.dumps(commands[name](argument), default=str), flush=True)
    for each in (link, *more):
        each.close()
    if cache is not None:
        cache.close()


if __name__ == "__main__":
    assert tempfile.gettempdir() == os.environ["TMPDIR"]
    main(*sys.argv[1:])
