"""What a load finds damaged is the object's fault, or the line's: no object is lost either way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from lmcache_core import HEADER_BYTES, BorrowedBuffer, ObjectKey, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from plugins.l2_s3.tests.bucket_media import BucketMedia
from plugins.l2_s3.tests.opened import Open, counters, until
from tests.remote.http_faults import Altered, Answer, Head, HttpFaults, Rule
from tests.remote.s3_servers import S3Server

DONE, MISSING, DAMAGED, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.DAMAGED, Outcome.FAILED
FOREIGN, REJECTED = Outcome.FOREIGN, Outcome.REJECTED
OpenMedia = Callable[[S3Server], BucketMedia]


@pytest.fixture
def media_of(prefix: str, request: pytest.FixtureRequest) -> OpenMedia:
    def media_of(server: S3Server) -> BucketMedia:
        client = server.client()
        request.addfinalizer(client.close)
        return BucketMedia(client, server.bucket, prefix)

    return media_of


def first(answer: Answer, count: int) -> Rule:
    """This answer for that number of GETs of objects."""
    places = iter(range(count))
    return lambda request: answer if _is_object(request) and next(places, None) is not None else None


def ever_another() -> Rule:
    """GETs of objects are altered, each at another place."""
    places: Iterator[int] = itertools.count(HEADER_BYTES)
    return lambda request: Altered(next(places)) if _is_object(request) else None


def _is_object(request: Head) -> bool:
    return request.method == "GET" and request.path.endswith(".kv")


def whole(memory: BorrowedMemory, key: ObjectKey, number: int = 0) -> tuple[ObjectKey, BorrowedBuffer]:
    return key, memory.sealed(key, payload_of(number, OBJECT_BYTES - HEADER_BYTES))


def load(driver: L2Driver, memory: BorrowedMemory, key: ObjectKey) -> Outcome:
    (outcome,) = driver.verified_load((key, memory.lend(OBJECT_BYTES)))
    return outcome


def hurt(driver: L2Driver, media: BucketMedia, memory: BorrowedMemory) -> ObjectKey:
    """An object that is damaged in the store, loaded and found out."""
    (key,) = put(driver, memory, 1)
    media.flip(key, HEADER_BYTES)
    assert load(driver, memory, key) is DAMAGED
    until(lambda: counters(driver)["damaged"] == 1)
    return key


def test_what_was_altered_on_its_way_is_a_miss_and_stays_where_it_is(
    open_here: Open, proxy: HttpFaults, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(proxy.endpoint), media_of(moto)
    (key,) = put(driver, memory, 1)
    stored = media.read(key)
    connected = proxy.connected
    proxy.switch(first(Altered(HEADER_BYTES + 7), 1))
    assert load(driver, memory, key) is DAMAGED
    until(lambda: counters(driver)["altered_on_the_way"] == 1)
    assert proxy.connected > connected, "another look is another connection"
    assert counters(driver)["damaged"] == 0
    assert driver.has(key) == (MISSING,)
    assert media.read(key) == stored
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE
    assert media.read(key) == stored, "it was there all the time"


def test_two_readings_that_differ_are_the_fault_of_the_line(
    open_here: Open, proxy: HttpFaults, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(proxy.endpoint, retry_attempts_max=1), media_of(moto)
    (key,) = put(driver, memory, 1)
    stored = media.read(key)
    proxy.switch(ever_another())
    assert load(driver, memory, key) is DAMAGED
    until(lambda: counters(driver)["altered_on_the_way"] == 1)
    assert driver.store(whole(memory, key)) == (FAILED,)  # which looks again, as long as it is unknown what is there
    assert counters(driver)["altered_on_the_way"] == 2
    assert media.read(key) == stored
    proxy.switch(None)
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE
    assert media.read(key) == stored
    assert counters(driver)["damaged"] == 0


@pytest.mark.parametrize("name", ["moto", "rclone"])
@pytest.mark.parametrize("sharing", [{}, {"shared": True, "owner": False}], ids=["alone", "guest"])
def test_what_is_damaged_gives_way_to_the_right_object_and_to_nothing_else(
    open_here: Open,
    media_of: OpenMedia,
    memory: BorrowedMemory,
    request: pytest.FixtureRequest,
    name: str,
    sharing: dict[str, bool],
) -> None:
    server: S3Server = request.getfixturevalue(name)
    driver, media = open_here(server=server, owner_lease_seconds=2, **sharing), media_of(server)
    (key,) = put(driver, memory, 1)
    stored = media.read(key)
    media.flip(key, HEADER_BYTES + 5)
    damaged = media.read(key)
    assert load(driver, memory, key) is DAMAGED
    until(lambda: counters(driver)["damaged"] == 1)
    assert driver.has(key) == (MISSING,)
    assert load(driver, memory, key) is MISSING
    assert media.read(key) == damaged, "it stays until there is something better"
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE
    assert media.read(key) == stored
    if not sharing:
        assert counted(driver) == (1, OBJECT_BYTES)


def test_what_another_client_has_replaced_meanwhile_stays(
    open_here: Open, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(shared=True), media_of(moto)
    key = hurt(driver, media, memory)
    theirs = bytes(whole(memory, key, number=77)[1].view)
    media.write(key, theirs)
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE
    assert media.read(key) == theirs


def test_what_was_taken_away_meanwhile_can_be_stored(
    open_here: Open, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(shared=True), media_of(moto)
    key = hurt(driver, media, memory)
    media.remove(key)
    assert driver.store(whole(memory, key)) == (Outcome.REJECTED,)
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE


def test_a_damaged_object_can_be_deleted(
    open_here: Open, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(), media_of(moto)
    key = hurt(driver, media, memory)
    assert driver.delete(key) == (DONE,)
    assert media.read(key) is None
    assert counted(driver) == (0, 0)
    assert driver.store(whole(memory, key)) == (DONE,)
    assert load(driver, memory, key) is DONE


def test_a_whole_object_of_another_length_gives_way(
    open_here: Open, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory
) -> None:
    driver, media = open_here(), media_of(moto)
    (key,) = put(driver, memory, 1)
    shorter = memory.sealed(key, b"short")
    assert driver.load((key, memory.lend(shorter.length))) == (DAMAGED,)
    assert driver.has(key) == (MISSING,)
    assert len(media.read(key) or b"") == OBJECT_BYTES
    assert driver.store((key, shorter)) == (DONE,)
    assert driver.verified_load((key, memory.lend(shorter.length))) == (DONE,)
    assert counted(driver) == (1, shorter.length)


@pytest.mark.parametrize("sharing", [{}, {"shared": True, "owner": False}], ids=["alone", "guest"])
def test_an_object_of_another_format_version_makes_room_where_the_bucket_has_one_owner(
    open_here: Open, moto: S3Server, media_of: OpenMedia, memory: BorrowedMemory, sharing: dict[str, bool]
) -> None:
    driver, media = open_here(**sharing), media_of(moto)
    (key,) = put(driver, memory, 1)
    stored = media.read(key)
    assert stored is not None
    newer = stored[:8] + (2).to_bytes(2, "little") + stored[10:]
    media.write(key, newer)
    assert load(driver, memory, key) is FOREIGN
    if sharing:
        assert {driver.store(whole(memory, key))[0] for _ in range(5)} == {REJECTED}
        assert media.read(key) == newer
        (condition,) = driver.adapter.conditions()
        assert (condition.name, condition.counts["objects"]) == ("objects_of_other_version", 1)
        return
    driver.store(whole(memory, key))
    until(lambda: driver.store(whole(memory, key)) == (DONE,))
    assert media.read(key) == stored
    assert load(driver, memory, key) is DONE
    assert not driver.adapter.conditions()
    media.write(key, newer)
    assert driver.delete(key) == (DONE,)
    assert media.read(key) is None
