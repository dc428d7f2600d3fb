"""An S3 server that answers with errors, with half of what it has, or not quite with that, before one running server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.media_faults.site import CHUNKS, wait_for
from tests.remote.backends import PREFIX, Backend
from tests.remote.http_faults import Altered, HttpFaults, Status, Truncated, every
from tests.remote.site import RemoteSite
from tests.remote.site_behind import site_behind

pytestmark = pytest.mark.parametrize("backend", ["s3"], indirect=True)

HALF_AN_OBJECT = 60_000


@pytest.fixture(scope="module")
def faults(backend: Backend) -> Iterator[HttpFaults]:
    with HttpFaults(backend.port) as faults:
        yield faults


@pytest.fixture(scope="module")
def site(backend: Backend, faults: HttpFaults, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteSite]:
    with site_behind(faults, backend, tmp_path_factory.mktemp("server")) as site:
        yield site


@pytest.fixture(autouse=True)
def repaired(faults: HttpFaults) -> Iterator[None]:
    yield
    faults.switch(None)


@pytest.mark.parametrize("code", [403, 500, 503])
def test_errors_for_everything(site: RemoteSite, faults: HttpFaults, code: int) -> None:
    before, during = site.fresh(2), site.fresh(2)
    site.in_l2(*before)
    stored = site.account["stored"]
    faults.switch(every(Status(code)))
    assert [site.hits(number) for number in before] == [0, 0]
    site.store(*during)
    assert [site.hits(number) for number in during] == [CHUNKS] * 2
    assert site.serves()
    site.settle()
    assert site.account["stored"] == stored, "stored what could not be"
    assert faults.answered[Status(code)]
    faults.switch(None)
    site.comes_back()
    site.forget_l1()
    wait_for(lambda: site.all_hits(*before))


@pytest.mark.parametrize("code", [pytest.param(500, marks=pytest.mark.slow), 503])
def test_errors_for_loads_alone(site: RemoteSite, faults: HttpFaults, code: int) -> None:
    (before,) = site.fresh(1)
    site.in_l2(before)
    faults.switch(every(Status(code), "GET"))
    assert site.hits(before) == 0
    faults.switch(None)
    site.comes_back()
    wait_for(lambda: site.hits(before) == CHUNKS)


@pytest.mark.parametrize("kept", [0, pytest.param(100, marks=pytest.mark.slow), HALF_AN_OBJECT])
def test_answers_that_end_too_soon(site: RemoteSite, faults: HttpFaults, kept: int) -> None:
    """However often it is tried: half of an object is not an object."""
    (before,) = site.fresh(1)
    site.in_l2(before)
    faults.switch(every(Truncated(kept), "GET"))
    assert site.hits(before) == 0
    assert faults.answered[Truncated(kept)]
    faults.switch(None)
    site.comes_back()
    site.forget_l1()
    wait_for(lambda: site.hits(before) == CHUNKS)


def test_answers_that_are_altered(site: RemoteSite, faults: HttpFaults, backend: Backend) -> None:
    """Alike each time, so that the line's fault looks like the objects'.  No object is lost for that."""
    (before,) = site.fresh(1)
    site.in_l2(before)
    stored = set(backend.objects(PREFIX))
    faults.switch(every(Altered(HALF_AN_OBJECT), "GET", path=".kv"))
    wait_for(lambda: site.hits(before) == 0 and site.adapter["counters"]["damaged"] > 0)
    assert set(backend.objects(PREFIX)) >= stored
    faults.switch(None)
    wait_for(lambda: site.stored_again(before))
    assert set(backend.objects(PREFIX)) >= stored
