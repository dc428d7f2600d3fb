"""What each answer of a store means, which does not depend on who asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_l2_s3.answers import PASSING, Answer, S3Error, answer_of, answer_of_fault, code_in

STATUSES = {
    200: Answer.OK, 204: Answer.OK, 206: Answer.OK, 301: Answer.WRONG_PLACE, 307: Answer.WRONG_PLACE,
    400: Answer.INVALID, 401: Answer.REFUSED, 403: Answer.REFUSED, 404: Answer.ABSENT, 405: Answer.UNSUPPORTED,
    408: Answer.TIMEOUT, 409: Answer.CONFLICT, 411: Answer.INVALID, 412: Answer.EXISTS, 413: Answer.TOO_LARGE,
    416: Answer.EMPTY, 429: Answer.THROTTLED, 500: Answer.SERVER_ERROR, 501: Answer.UNSUPPORTED,
    502: Answer.SERVER_ERROR, 503: Answer.THROTTLED, 504: Answer.SERVER_ERROR, 507: Answer.FULL,
}  # fmt: skip
CODES = [
    (400, "RequestTimeout", Answer.TIMEOUT), (400, "BadDigest", Answer.CORRUPTED), (400, "EntityTooLarge", Answer.TOO_LARGE),
    (400, "ExpiredToken", Answer.CREDENTIALS), (403, "SignatureDoesNotMatch", Answer.CREDENTIALS),
    (403, "RequestTimeTooSkewed", Answer.CREDENTIALS), (403, "AccessDenied", Answer.REFUSED),

    (500, "AccessDenied", Answer.REFUSED), (403, "QuotaExceeded", Answer.FULL),
    (404, "NoSuchBucket", Answer.NO_BUCKET), (404, "NoSuchKey", Answer.ABSENT),
    (500, "SlowDown", Answer.THROTTLED), (503, "SlowDown", Answer.THROTTLED), (200, "InternalError", Answer.SERVER_ERROR),
    (200, "SomethingNew", Answer.SERVER_ERROR), (503, "SomethingNew", Answer.THROTTLED),
]  # fmt: skip
FAULTS = [
    ("AWS_IO_SOCKET_CONNECTION_REFUSED", Answer.UNREACHABLE), ("AWS_IO_SOCKET_TIMEOUT", Answer.TIMEOUT),
    ("AWS_ERROR_HTTP_RESPONSE_FIRST_BYTE_TIMEOUT", Answer.TIMEOUT), ("AWS_IO_DNS_INVALID_NAME", Answer.UNREACHABLE),
    ("AWS_ERROR_S3_CANCELED", Answer.CANCELLED), ("AWS_ERROR_S3_RESPONSE_CHECKSUM_MISMATCH", Answer.CORRUPTED),
    ("AWS_IO_TLS_ERROR_NEGOTIATION_FAILURE", Answer.UNREACHABLE), ("AWS_ERROR_HTTP_CONNECTION_CLOSED", Answer.UNREACHABLE),
    ("AWS_ERROR_S3_SLOW_DOWN", Answer.THROTTLED), ("AWS_ERROR_S3_INTERNAL_ERROR", Answer.SERVER_ERROR),
    ("AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED", Answer.CREDENTIALS), ("AWS_ERROR_S3_REQUEST_TIMEOUT", Answer.TIMEOUT),
    ("AWS_AUTH_CREDENTIALS_PROVIDER_DELEGATE_FAILURE", Answer.CREDENTIALS),
]  # fmt: skip


@pytest.mark.parametrize(("status", "answer"), STATUSES.items())
def test_statuses(status: int, answer: Answer) -> None:
    assert answer_of(status) is answer


@pytest.mark.parametrize(("status", "code", "answer"), CODES)
def test_codes_say_more_than_statuses(status: int, code: str, answer: Answer) -> None:
    assert answer_of(status, code) is answer


@pytest.mark.parametrize(("name", "answer"), FAULTS)
def test_faults_on_the_way(name: str, answer: Answer) -> None:
    assert answer_of_fault(name) is answer


@given(st.integers(100, 999), st.text(max_size=20))
def test_every_status_means_something_and_only_2xx_without_a_code_is_good(status: int, code: str) -> None:
    assert (answer_of(status, code) is Answer.OK) == (200 <= status < 300 and not code)


def test_what_may_pass_is_what_another_attempt_may_change() -> None:
    assert {Answer.THROTTLED, Answer.SERVER_ERROR, Answer.UNREACHABLE, Answer.TIMEOUT} <= PASSING
    assert not PASSING & {Answer.OK, Answer.ABSENT, Answer.REFUSED, Answer.CREDENTIALS, Answer.FULL, Answer.NO_BUCKET}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>m</Message></Error>', "SlowDown"),
        (b"<Error><Code> NoSuchKey </Code></Error>", "NoSuchKey"),
        (b"<html>502</html>", ""), (b"", ""), (None, ""), (b"<Code>" + b"a" * 100 + b"</Code>", ""),
    ],
)  # fmt: skip
def test_the_code_of_a_body(body: bytes | None, code: str) -> None:
    assert code_in(body) == code


def test_an_error_says_who_what_and_what_to_do() -> None:
    error = S3Error("disk-7", "loading", Answer.REFUSED, 403, "AccessDenied")
    assert str(error).startswith(
        "disk-7: loading: HTTP 403 AccessDenied (forbidden); check what the credentials may do"
    )
    assert not error.is_passing
