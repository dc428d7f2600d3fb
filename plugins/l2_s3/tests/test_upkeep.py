"""What a running adapter sees to: deletions in bulk, credentials that end, and how much there is."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta

import pytest

from lmcache_core import CircuitState, KeyPage, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_s3.adapter import S3Adapter
from lmcache_l2_s3.config import S3Settings
from lmcache_l2_s3.credentials import SigningKeys
from plugins.l2_s3.tests.bucket_media import BucketMedia
from plugins.l2_s3.tests.opened import Open, circuit, counters, until
from tests.remote.http_faults import Head, HttpFaults, Status, every
from tests.remote.s3_servers import S3Server

DONE, MISSING, FAILED = Outcome.DONE, Outcome.MISSING, Outcome.FAILED
OFTEN_SECONDS = 0.05


class _TokenService(http.server.BaseHTTPRequestHandler):
    """An STS: each role that is assumed gets a new token, which is about to end."""

    issued: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        token = f"token-{len(self.issued) + 1}"
        ends = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
        body = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>ASIAEXAMPLE</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>{token}</SessionToken>"
            f"<Expiration>{ends}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.issued.append(token)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Those that were given out."""
    issued: list[str] = []
    handler = type("TokenService", (_TokenService,), {"issued": issued})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield issued
        finally:
            server.shutdown()
            serving.join()


def test_a_token_that_ends_while_the_adapter_runs_is_renewed_for_both_clients(
    open_here: Open,
    proxy: HttpFaults,
    memory: BorrowedMemory,
    tokens: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SigningKeys, "REFRESH_SECONDS", OFTEN_SECONDS)
    driver = open_here(proxy.endpoint, role_arn="arn:aws:iam::123456789012:role/kv")
    (key,) = put(driver, memory, 1)
    ended = set(tokens)

    def only_later_tokens(request: Head) -> Status | None:
        fields = request.raw.decode("latin-1").lower().split("\r\n")
        (token,) = (field.partition(":")[2].strip() for field in fields if field.startswith("x-amz-security-token:"))
        return Status(400, "ExpiredToken") if token in ended else None

    proxy.switch(only_later_tokens)
    until(lambda: driver.load((key, memory.lend(OBJECT_BYTES))) == (DONE,))
    assert driver.adapter.list_keys(None, 10) == KeyPage((key,), None, (OBJECT_BYTES,))
    assert circuit(driver) is CircuitState.CLOSED
    driver.adapter.close(10)
    assert "threads of the client have not ended" not in caplog.text


def test_a_token_that_cannot_be_renewed_is_said_and_not_shown(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory, caplog: pytest.LogCaptureFixture
) -> None:
    driver = open_here(proxy.endpoint, aws_session_token="token-of-old")
    (key,) = put(driver, memory, 1)
    proxy.switch(every(Status(400, "ExpiredToken")))
    assert driver.load((key, memory.lend(OBJECT_BYTES))) == (FAILED,)
    assert "ExpiredToken" in caplog.text
    assert "check the credentials" in caplog.text
    assert "token-of-old" not in caplog.text
    assert counters(driver)["answers_credentials"] == 1, "another attempt would get the same answer"


@pytest.mark.parametrize("code", [400, 405, 501])
def test_a_store_that_cannot_delete_in_bulk_is_asked_once_and_then_for_each(
    open_here: Open, proxy: HttpFaults, moto: S3Server, memory: BorrowedMemory, prefix: str, code: int
) -> None:
    driver = open_here(proxy.endpoint)
    refusal = Status(code)
    proxy.switch(every(refusal, "POST", path="?delete"))
    with closing(moto.client()) as client:
        media = BucketMedia(client, moto.bucket, prefix)
        for _ in range(2):
            keys = put(driver, memory, 6)
            assert driver.delete(*keys) == (DONE,) * 6
            assert [media.read(key) for key in keys] == [None] * 6
            assert counted(driver) == (0, 0)
    assert proxy.answered[refusal] == 1


def test_deletions_in_bulk_that_fail_are_said_and_what_is_there_stays_known(
    open_here: Open, proxy: HttpFaults, memory: BorrowedMemory
) -> None:
    driver = open_here(proxy.endpoint)
    keys = put(driver, memory, 3)
    proxy.switch(every(Status(403), "POST", path="?delete"))
    assert driver.delete(*keys) == (FAILED,) * 3
    proxy.switch(None)
    assert driver.has(*keys) == (DONE,) * 3
    assert driver.delete(*keys) == (DONE,) * 3
    assert driver.has(*keys) == (MISSING,) * 3


def test_an_owner_stays_one_where_entity_tags_are_compared_without_their_quotes(
    open_here: Open, proxy: HttpFaults, moto: S3Server, memory: BorrowedMemory, prefix: str
) -> None:
    renewals: list[str] = []

    def bare_tags_alone(request: Head) -> Status | None:
        raw = request.raw.lower()
        if b'if-match: "' in raw:
            return Status(412)
        if b"if-match: " in raw and ".owner" in request.path:
            renewals.append(request.path)
        return None

    proxy.switch(bare_tags_alone)
    driver = open_here(proxy.endpoint, owner_lease_seconds=1)
    until(lambda: len(renewals) >= 2)
    assert counters(driver)["owner"] == 1
    (key,) = put(driver, memory, 1)
    with closing(moto.client()) as client:
        BucketMedia(client, moto.bucket, prefix).flip(key, 5000)
    assert driver.verified_load((key, memory.lend(OBJECT_BYTES))) == (Outcome.DAMAGED,)
    until(lambda: counters(driver)["damaged"] == 1)
    assert driver.store((key, memory.sealed(key, b"anew" * 1000))) == (DONE,)
    assert driver.verified_load((key, memory.lend(4096 + 4000))) == (DONE,)


def test_the_owner_of_a_shared_bucket_learns_what_others_changed(
    open_here: Open, moto: S3Server, memory: BorrowedMemory, prefix: str
) -> None:
    settings = S3Settings.model_validate(moto.settings(prefix=prefix, shared=True, owner=True))
    often = settings.model_copy(update={"recount_seconds": OFTEN_SECONDS})  # less than an operator may choose
    adapter = S3Adapter(often, adapter_context(memory, name="s3"))
    with closing(moto.client()) as client, ExitStack() as stack:
        stack.callback(adapter.close, 10)
        driver = L2Driver(adapter)
        keys = put(driver, memory, 3)
        assert counted(driver) == (3, 3 * OBJECT_BYTES)
        BucketMedia(client, moto.bucket, prefix).remove(keys[0])
        until(lambda: counted(driver) == (2, 2 * OBJECT_BYTES))
        put(open_here(shared=True), memory, 4, first=10)
        until(lambda: counted(driver) == (6, 6 * OBJECT_BYTES))
        assert driver.delete(keys[1]) == (DONE,)
        listings = counters(driver)["listings"]
        until(lambda: counters(driver)["listings"] >= listings + 2)
        assert counted(driver) == (5, 5 * OBJECT_BYTES)


def test_what_does_not_add_up_is_counted_again_while_it_runs(
    open_here: Open, moto: S3Server, memory: BorrowedMemory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_l2_s3.usage_tracker.DOUBT_SECONDS", OFTEN_SECONDS)
    driver = open_here()
    keys = put(driver, memory, 3)
    assert counted(driver) == (3, 3 * OBJECT_BYTES)
    with closing(moto.client()) as client:
        BucketMedia(client, moto.bucket, prefix).remove(keys[0])
    assert driver.load((keys[0], memory.lend(OBJECT_BYTES))) == (MISSING,)
    until(lambda: counted(driver) == (2, 2 * OBJECT_BYTES))
    assert counters(driver)["listings"] == 2, "and only then"
