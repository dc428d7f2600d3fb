"""The line to a backend breaks in every way a line can, under one running server, and is repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from tests.media_faults.site import CHUNKS, wait_for
from tests.remote.backends import Backend
from tests.remote.site import RemoteSite
from tests.remote.site_behind import site_behind
from tests.remote.tcp_proxy import (
    CutAfter,
    Delay,
    Fault,
    Flip,
    Nothing,
    Refuse,
    ResetAfter,
    Silence,
    TcpProxy,
    Throttle,
    Way,
)

pytestmark = pytest.mark.parametrize("backend", ["s3", "redis"], indirect=True)

ANSWERS = frozenset({Way.ANSWERS})
REQUESTS = frozenset({Way.REQUESTS})
HALF_AN_OBJECT = 60_000


@pytest.fixture(scope="module")
def proxy(backend: Backend) -> Iterator[TcpProxy]:
    with TcpProxy(backend.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def site(backend: Backend, proxy: TcpProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    """One server for all faults, one after the other: it is never started again."""
    with site_behind(proxy, backend, tmp_path_factory.mktemp("server")) as site:
        yield site


@pytest.fixture(autouse=True)
def repaired(site: RemoteSite, proxy: TcpProxy) -> Iterator[None]:
    """A test that fails leaves the next one a line that works."""
    site.wait_circuit("closed")
    yield
    proxy.switch(Nothing())


class Served(NamedTuple):
    """What a server did while its line was broken."""

    before: Sequence[int]
    """Two prompts that were in L2 alone then."""
    hits: Sequence[int]
    """Chunks of each of them that were served."""
    during: Sequence[int]
    """Two prompts that were stored then."""
    stored: int
    """Objects that the adapter said it had stored then."""


def served_under(site: RemoteSite, proxy: TcpProxy, fault: Fault) -> Served:
    """Ask a server everything while the line is as `fault` says.  Every byte that is served is compared, and a client that is
    not answered in time raises."""
    before, during = site.fresh(2), site.fresh(2)
    site.in_l2(*before)
    stored = site.account["stored"]
    proxy.switch(fault)
    hits = [site.hits(number) for number in before]
    assert [site.hits(number) for number in site.fresh(1)] == [0], "found what was not stored"
    site.store(*during)
    assert [site.hits(number) for number in during] == [CHUNKS] * 2, "L1 serves on, whatever its backend does"
    assert site.serves()
    site.settle()
    return Served(before, hits, during, site.account["stored"] - stored)


BREAKING = [
    pytest.param(Refuse(), id="refused"),
    pytest.param(ResetAfter(ANSWERS, passed_bytes=0), id="answers-reset-at-once"),
    pytest.param(CutAfter(ANSWERS, passed_bytes=0), id="answers-end-at-once", marks=pytest.mark.slow),
    pytest.param(Silence(), id="silence", marks=pytest.mark.slow),
    pytest.param(Silence(ANSWERS), id="answers-are-silent", marks=pytest.mark.slow),
]
TEARING = [
    pytest.param(ResetAfter(ANSWERS, passed_bytes=HALF_AN_OBJECT), id="answers-reset"),
    pytest.param(CutAfter(ANSWERS, passed_bytes=HALF_AN_OBJECT), id="answers-end", marks=pytest.mark.slow),
    pytest.param(ResetAfter(REQUESTS, passed_bytes=HALF_AN_OBJECT), id="requests-reset"),
    pytest.param(CutAfter(REQUESTS, passed_bytes=HALF_AN_OBJECT), id="requests-end", marks=pytest.mark.slow),
]
ALTERING = [
    pytest.param(Flip(ANSWERS, every_bytes=HALF_AN_OBJECT), id="answers-altered"),
    pytest.param(Flip(REQUESTS, every_bytes=HALF_AN_OBJECT), id="requests-altered"),
]
SLOWING = [
    pytest.param(Delay(seconds=0.05), id="delayed"),
    pytest.param(Delay(seconds=1.5), id="delayed-beyond-a-lookup", marks=pytest.mark.slow),
    pytest.param(Throttle(bytes_per_second=300_000), id="throttled", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fault", BREAKING)
def test_a_line_that_is_gone(site: RemoteSite, proxy: TcpProxy, fault: Fault) -> None:
    """The circuit opens, and closes when it is back; what was stored before is there again."""
    served = served_under(site, proxy, fault)
    assert served.hits == [0, 0]
    assert served.stored == 0, "stored what could not be"
    site.wait_circuit("open", "half_open")
    repair(site, proxy)
    wait_for(lambda: site.all_hits(*served.before))


@pytest.mark.parametrize("fault", TEARING)
def test_a_line_that_tears_transfers(site: RemoteSite, proxy: TcpProxy, fault: Fault) -> None:
    """No object fits through, though the backend can be reached."""
    served = served_under(site, proxy, fault)
    if Way.ANSWERS in fault.ways:
        assert served.hits == [0, 0]
    else:
        assert served.stored == 0
    repair(site, proxy)
    wait_for(lambda: site.all_hits(*served.before))
    if Way.REQUESTS in fault.ways:
        assert [site.hits(number) for number in served.during] == [0, 0], "half of an object was taken for one"


@pytest.mark.parametrize("fault", ALTERING)
def test_a_line_that_alters_bytes(site: RemoteSite, proxy: TcpProxy, fault: Fault) -> None:
    """Some of each object.  What came altered is a miss; so is what was stored altered, when it is loaded, and it can be
    stored again."""
    served = served_under(site, proxy, fault)
    if Way.ANSWERS in fault.ways:
        assert served.hits == [0, 0]
    repair(site, proxy)
    altered = served.before if Way.ANSWERS in fault.ways else served.during
    if Way.REQUESTS in fault.ways:
        assert [site.hits(number) for number in altered] == [0, 0]
    wait_for(lambda: site.stored_again(*altered))


@pytest.mark.parametrize("fault", SLOWING)
def test_a_line_that_is_slow(site: RemoteSite, proxy: TcpProxy, fault: Fault) -> None:
    """Lookups take what has come by their deadline, and stores take as long as they need."""
    served = served_under(site, proxy, fault)
    assert served.stored == 2 * CHUNKS, "a slow line loses nothing"
    repair(site, proxy)
    wait_for(lambda: site.all_hits(*served.before, *served.during))


def repair(site: RemoteSite, proxy: TcpProxy) -> None:
    """Nothing but L2 has anything then."""
    proxy.switch(Nothing())
    site.comes_back()
    site.forget_l1()
