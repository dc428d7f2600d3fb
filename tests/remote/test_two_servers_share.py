"""Two servers, one backend that both declare to share: each serves what the other stored, and neither sees anything torn."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from demo.server_process import HOST, ServerProcess
from tests.media_faults.site import CHUNKS, wait_for
from tests.remote.backends import Backend
from tests.remote.site import RemoteSite, small_server
from tests.remote.tcp_proxy import Nothing, Refuse, TcpProxy, Throttle, Way

pytestmark = [
    pytest.mark.parametrize(
        "backend",
        [
            "s3",
            pytest.param("redis", marks=pytest.mark.slow),
            pytest.param("s3-rclone", marks=pytest.mark.slow),
            pytest.param("s3-ceph", marks=pytest.mark.slow),
        ],
        indirect=True,
    ),
]

SLOW = Throttle(frozenset({Way.REQUESTS}), bytes_per_second=1_000_000)
HALF_OF_THEM = 1_200_000
"""Of three prompts: so that some objects may be whole when the server dies, and others are not."""


class Pair:
    """`first` reaches the backend through `proxy`, `second` directly."""

    def __init__(self, backend: Backend, proxy: TcpProxy, folder: Path) -> None:
        self.backend, self.proxy = backend, proxy
        self.servers = [
            ServerProcess(small_server(backend.through(port, shared=True)), folder / f"server-{port}.log")
            for port in (proxy.port, backend.port)
        ]

    def start(self, stack: ExitStack) -> None:
        """Until the stack is closed."""
        for server in self.servers:
            stack.enter_context(server)
        self.first, self.second = map(RemoteSite, self.servers)
        for site in (self.first, self.second):
            stack.callback(site.close)

    def objects(self) -> int:
        """Whole objects that lie there; fails on anything torn."""
        return len(self.backend.whole())


@pytest.fixture(scope="module")
def pair(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """For all tests of a backend: each leaves it empty, and both servers running."""
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(backend.port))
        pair = Pair(backend, proxy, tmp_path_factory.mktemp("servers"))
        pair.start(stack)
        yield pair


def test_both_see_what_each_stores_and_deletes(pair: Pair) -> None:
    mine, theirs, both = ([number, number + 1] for number in (1, 11, 21))
    assert [pair.second.hits(number) for number in mine] == [0, 0]
    pair.first.in_l2(*mine)
    pair.second.in_l2(*theirs)
    wait_for(lambda: pair.second.all_hits(*mine))
    wait_for(lambda: pair.first.all_hits(*theirs))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda site: (site.store(*both), site.settle()), (pair.first, pair.second)))
    assert pair.objects() == 6 * CHUNKS, "a key that both stored is one object"
    for site in (pair.first, pair.second):
        assert site.account["failed"] == site.account["dropped"] == 0
        site.forget_l1()
        wait_for(lambda site=site: site.all_hits(*mine, *theirs, *both))  # type: ignore[misc]
        site.forget_l1()

    delete_everything(pair.servers[0])
    assert pair.objects() == 0
    for site in (pair.first, pair.second):
        assert [site.hits(number) for number in (*mine, *theirs, *both)] == [0] * 6
    pair.first.in_l2(*mine)
    wait_for(lambda: pair.second.all_hits(*mine))
    for site in (pair.first, pair.second):
        site.check_books()
    delete_everything(pair.servers[0])
    assert pair.objects() == 0


def test_the_death_of_one_in_the_middle_of_a_store(pair: Pair) -> None:
    """The other sees whole objects or none, and can store what the dead one could not."""
    torn = [31, 32, 33]
    pair.proxy.switch(SLOW)
    pair.first.store(*torn)
    pair.proxy.wait_passed(Way.REQUESTS, HALF_OF_THEM)
    pair.servers[0].kill()
    pair.proxy.switch(Refuse())  # what its kernel would still send is lost, too, as when the machine dies
    pair.proxy.switch(Nothing())
    there = pair.objects()
    assert there < len(torn) * CHUNKS, "it was killed too late to show anything"
    assert sum(pair.second.hits(number) for number in torn) <= pair.objects()
    pair.second.store(*torn)
    pair.second.settle()
    assert pair.second.account["failed"] == pair.second.account["dropped"] == 0
    assert pair.objects() == len(torn) * CHUNKS
    pair.second.forget_l1()
    wait_for(lambda: pair.second.all_hits(*torn))

    pair.servers[0].start()
    again = RemoteSite(pair.servers[0])
    wait_for(lambda: again.all_hits(*torn))
    again.close()
    pair.second.check_books()
    delete_everything(pair.servers[1])


def delete_everything(server: ServerProcess) -> None:
    """As an operator orders it, to the end."""
    url = f"http://{HOST}:{server.http_port}"
    request = urllib.request.Request(f"{url}/l2?everything=true", method="DELETE")
    with urllib.request.urlopen(request, timeout=30) as answer:
        location, said = answer.headers.get("Location"), json.load(answer)

    def ended() -> bool:
        nonlocal said
        if location is not None:
            with urllib.request.urlopen(f"{url}{location}", timeout=30) as answer:
                said = json.load(answer)
        return bool(said["status"] != "running")

    wait_for(ended)
    assert said["ok"], said
    assert said["skipped"] == 0, said
