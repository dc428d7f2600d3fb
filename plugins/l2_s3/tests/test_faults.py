"""What becomes of operations when the store refuses, complains, breaks off, or says nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from lmcache_core import HEADER_BYTES, BorrowedBuffer, CircuitState, Outcome, ResourceError
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_s3.adapter import S3Adapter
from lmcache_l2_s3.answers import S3Error
from lmcache_l2_s3.config import S3Settings
from plugins.l2_s3.tests.bucket_media import BucketMedia, stopped_process
from plugins.l2_s3.tests.opened import Open, circuit, counters, until
from tests.remote.http_faults import Head, HttpFaults, Status, Truncated, every
from tests.remote.s3_servers import S3Server

DONE, MISSING, FAILED, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED, Outcome.REJECTED


def test_a_store_that_wants_less_gets_less_and_nothing_fails(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory
) -> None:
    driver = open_here(proxy.endpoint)
    keys = put(driver, memory, 6)
    proxy.switch(every(Status(503)))
    job = driver.submit_load([(key, memory.lend(OBJECT_BYTES)) for key in keys])
    until(lambda: counters(driver).get("answers_throttled", 0) >= 8)
    proxy.switch(None)
    assert driver.finish(job) == (DONE,) * 6
    assert counters(driver)["slowed_down"] >= 1
    assert counters(driver)["in_flight_limit"] < 128


def test_one_object_that_is_refused_is_a_miss_and_opens_nothing(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory
) -> None:
    driver = open_here(proxy.endpoint)
    refused, fine = put(driver, memory, 2)
    proxy.switch(every(Status(403), "GET", path=refused.object_id.hex()))
    for _ in range(12):
        loads = [(key, memory.lend(OBJECT_BYTES)) for key in (refused, fine)]
        assert driver.load(loads[0]) + driver.load(loads[1]) == (MISSING, DONE)
    assert circuit(driver) is CircuitState.CLOSED
    assert counters(driver)["answers_forbidden"] == 12


def test_a_store_that_refuses_everything_is_left_alone_and_the_log_says_why(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    driver = open_here(proxy.endpoint)
    proxy.switch(every(Status(403)))
    with caplog.at_level(logging.WARNING):
        for number in range(30):
            driver.load((object_key(number), memory.lend(HEADER_BYTES)))
    assert circuit(driver) is not CircuitState.CLOSED
    assert "check what the credentials may do" in caplog.text
    assert "moto-secret" not in caplog.text


def test_errors_of_the_server_are_tried_again_and_open_the_circuit_when_they_stay(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory
) -> None:
    driver = open_here(proxy.endpoint, retry_attempts_max=2)
    (key,) = put(driver, memory, 1)
    proxy.switch(every(Status(500)))
    for _ in range(12):
        assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert circuit(driver) is CircuitState.OPEN
    assert driver.has(key) == (FAILED,)  # what is remembered does not vouch for a store that is down


@pytest.mark.parametrize("length", [0, 100, HEADER_BYTES, OBJECT_BYTES - 1])
def test_an_answer_that_breaks_off_is_never_done(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory, length: int
) -> None:
    driver = open_here(proxy.endpoint, retry_attempts_max=1)
    (key,) = put(driver, memory, 1)
    proxy.switch(every(Truncated(length), "GET"))
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,)
    at_most = memory.lend(2 * OBJECT_BYTES)._replace(at_most=True)
    assert driver.load((key, at_most)) == (FAILED,)
    proxy.switch(None)
    assert driver.verified_load((key, memory.lend(OBJECT_BYTES))) == (DONE,)


def test_a_buffer_is_kept_until_the_client_has_released_it(
    open_here: Open, moto: S3Server, memory: BorrowedMemory
) -> None:
    driver = open_here(operation_timeout_seconds=5)
    keys = put(driver, memory, 4)
    borrowed: list[tuple[Any, BorrowedBuffer]] = [(key, memory.lend(OBJECT_BYTES)) for key in keys]
    with stopped_process(moto)():
        job = driver.submit_load(borrowed)
        assert driver.finish(job) == (Outcome.TIMED_OUT,) * 4
        driver.wait_released(job)
        for _, buffer in borrowed:
            buffer.view[:] = b"\xa5" * buffer.length
    assert driver.load(*((key, memory.lend(OBJECT_BYTES)) for key in keys)) == (DONE,) * 4  # the server was woken up
    for _, buffer in borrowed:
        assert buffer.view == b"\xa5" * buffer.length


def test_a_bucket_that_is_not_there_is_named(open_here: Open, moto: S3Server, memory: BorrowedMemory) -> None:
    settings = moto.settings(s3_endpoint=f"{moto.host}/no-such-bucket")
    with pytest.raises(ResourceError, match=r"no-such-bucket.*HTTP 404"):
        S3Adapter(S3Settings.model_validate(settings), adapter_context(memory))


def test_no_server_at_the_endpoint_is_an_error_that_names_it(memory: BorrowedMemory) -> None:
    settings = {"s3_endpoint": "127.0.0.1:1/kvcache", "s3_region": "r", "disable_tls": True, "s3_num_io_threads": 1}
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "never-shown"}
    with pytest.raises(ResourceError, match=r"127\.0\.0\.1:1.*check the endpoint") as refused:
        S3Adapter(S3Settings.model_validate({**settings, **keys}), adapter_context(memory))
    assert "never-shown" not in str(refused.value)


def test_a_second_owner_is_refused_and_the_first_is_named(open_here: Open, memory: BorrowedMemory) -> None:
    first = open_here(boot_id="first-boot", owner_lease_seconds=8)
    with pytest.raises(ResourceError, match="first-boot"):
        open_here(owner_lease_seconds=8)
    first.adapter.close(10)
    put(open_here(owner_lease_seconds=8), memory, 1)


def test_what_is_there_and_not_ours_is_never_replaced(
    open_here: Open, moto: S3Server, rclone: S3Server, memory: BorrowedMemory, prefix: str
) -> None:
    """Not known before, and also where the store would replace it without a word."""
    for number, server in enumerate((moto, rclone)):
        client = server.client()
        media = BucketMedia(client, server.bucket, prefix)
        key = object_key(number)
        media.write(key, b"a letter")
        driver = open_here(server=server, owner_lease_seconds=2)
        assert driver.store((key, memory.sealed(key, b"x" * 10_000))) == (REJECTED,)
        assert driver.has(key) == (MISSING,)
        assert driver.delete(key) == (MISSING,)
        assert media.read(key) == b"a letter"
        assert counters(driver)["conditional_writes"] == int(server is moto)
        client.close()


def test_what_others_took_away_is_counted_again(
    open_here: Open, moto: S3Server, memory: BorrowedMemory, prefix: str
) -> None:
    driver = open_here()
    keys = put(driver, memory, 3)
    assert counted(driver) == (3, 3 * OBJECT_BYTES)
    client = moto.client()
    BucketMedia(client, moto.bucket, prefix).remove(keys[0])
    client.close()
    assert driver.load((keys[0], memory.lend(OBJECT_BYTES))) == (MISSING,)
    driver.adapter.close(10)
    assert counted(open_here()) == (2, 2 * OBJECT_BYTES)


def test_a_header_that_breaks_off_once_is_read_again_for_a_listing(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory
) -> None:
    earlier = open_here()
    (key,) = put(earlier, memory, 1)
    earlier.adapter.close(5)
    left = 1000

    def rule(request: Head) -> Truncated | None:
        nonlocal left
        if request.method != "GET" or key.object_id.hex() not in request.path or not left:
            return None
        left -= 1
        return Truncated(100)

    driver = open_here(proxy.endpoint, retry_attempts_max=1)
    proxy.switch(rule)
    with pytest.raises(S3Error, match="reading the header"):
        driver.keys(10)
    left = 1
    assert driver.keys(10) == [key]
    assert left == 0
