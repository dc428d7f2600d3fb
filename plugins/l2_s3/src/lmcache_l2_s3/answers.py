"""What the answers of a store mean, wherever they come from: HTTP statuses, codes in their bodies, faults on the way."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from lmcache_core import AdapterError


class Answer(Enum):
    """The value is the label under which it is counted."""

    OK = "ok"
    ABSENT = "absent"
    """404: no such object."""
    EXISTS = "precondition_failed"
    """412: something else is there than the request allows."""
    CONFLICT = "conflict"
    """409: two changed it at once; asked again, it is settled."""
    EMPTY = "range_not_satisfiable"
    """416: the object has not a single byte."""
    REFUSED = "forbidden"
    """401, 403: of one object, or of all of them."""
    CREDENTIALS = "credentials"
    """Unknown or expired credentials, a wrong signature, or a clock that is wrong."""
    THROTTLED = "throttled"
    """429, 503, SlowDown: too much at once."""
    FULL = "full"
    """507, or a quota."""
    TOO_LARGE = "too_large"
    UNSUPPORTED = "not_implemented"
    """405, 501: this store does not know the operation, or one of its headers."""
    WRONG_PLACE = "redirect"
    """3xx: the bucket is in another region."""
    NO_BUCKET = "no_bucket"
    CORRUPTED = "corrupted"
    """A checksum does not match what was moved."""
    SERVER_ERROR = "server_error"
    """500, 502, 504 and their like."""
    TIMEOUT = "timeout"
    """The store, or the network, took too long."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke."""
    WRONG_LENGTH = "misfit"
    """The object has another length than the buffer."""
    CANCELLED = "cancelled"
    INVALID = "invalid"
    """400 and whatever else is not known here."""


PASSING: Final = frozenset(
    {Answer.CONFLICT, Answer.THROTTLED, Answer.CORRUPTED, Answer.SERVER_ERROR, Answer.TIMEOUT, Answer.UNREACHABLE}
)
"""May be another one the next time."""

_BY_CODE: Final = {
    "SlowDown": Answer.THROTTLED,
    "SlowDownRead": Answer.THROTTLED,
    "SlowDownWrite": Answer.THROTTLED,
    "Throttling": Answer.THROTTLED,
    "ThrottlingException": Answer.THROTTLED,
    "TooManyRequests": Answer.THROTTLED,
    "TooManyRequestsException": Answer.THROTTLED,
    "RequestLimitExceeded": Answer.THROTTLED,
    "BandwidthLimitExceeded": Answer.THROTTLED,
    "AccessDenied": Answer.REFUSED,
    "InvalidAccessKeyId": Answer.CREDENTIALS,
    "SignatureDoesNotMatch": Answer.CREDENTIALS,
    "ExpiredToken": Answer.CREDENTIALS,
    "InvalidToken": Answer.CREDENTIALS,
    "TokenRefreshRequired": Answer.CREDENTIALS,
    "RequestTimeTooSkewed": Answer.CREDENTIALS,
    "AuthorizationHeaderMalformed": Answer.CREDENTIALS,
    "QuotaExceeded": Answer.FULL,
    "XMinioStorageFull": Answer.FULL,
    "XMinioAdminBucketQuotaExceeded": Answer.FULL,
    "EntityTooLarge": Answer.TOO_LARGE,
    "NoSuchBucket": Answer.NO_BUCKET,
    "PermanentRedirect": Answer.WRONG_PLACE,
    "RequestTimeout": Answer.TIMEOUT,
    "BadDigest": Answer.CORRUPTED,
    "XAmzContentChecksumMismatch": Answer.CORRUPTED,
    "IncompleteBody": Answer.CORRUPTED,
    "InternalError": Answer.SERVER_ERROR,
    "NotImplemented": Answer.UNSUPPORTED,
    "MethodNotAllowed": Answer.UNSUPPORTED,
}
_BY_STATUS: Final = {
    401: Answer.REFUSED,
    403: Answer.REFUSED,
    404: Answer.ABSENT,
    405: Answer.UNSUPPORTED,
    408: Answer.TIMEOUT,
    409: Answer.CONFLICT,
    412: Answer.EXISTS,
    413: Answer.TOO_LARGE,
    416: Answer.EMPTY,
    429: Answer.THROTTLED,
    501: Answer.UNSUPPORTED,
    503: Answer.THROTTLED,
    507: Answer.FULL,
}
_BY_NAME: Final = {
    "AWS_ERROR_S3_SLOW_DOWN": Answer.THROTTLED,
    "AWS_ERROR_S3_INTERNAL_ERROR": Answer.SERVER_ERROR,
    "AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED": Answer.CREDENTIALS,
    "AWS_ERROR_S3_REQUEST_TIMEOUT": Answer.TIMEOUT,
    "AWS_ERROR_S3_EXCEEDS_MEMORY_LIMIT": Answer.THROTTLED,
    "AWS_ERROR_S3_OBJECT_MODIFIED": Answer.CONFLICT,
}
"""What the client tells by a name of its own, and not by the status that came."""
_CODE: Final = re.compile(rb"<Code>\s*([A-Za-z0-9]{1,64})\s*</Code>")
_CHECKSUM_FAULT: Final = re.compile("CHECKSUM|CONTENT_RANGE")
_CLOCK: Final = re.compile("TIMEOUT|TIMED_OUT")


def answer_of(status: int, code: str = "") -> Answer:
    """Of an answer that a store gave; `code` is the error code in its body."""
    if 200 <= status < 300 and not code:
        return Answer.OK
    if (by_code := _BY_CODE.get(code)) is not None:
        return by_code
    if (by_status := _BY_STATUS.get(status)) is not None:
        return by_status
    if 300 <= status < 400:
        return Answer.WRONG_PLACE
    return Answer.SERVER_ERROR if status >= 500 or 200 <= status < 300 else Answer.INVALID


def answer_of_fault(name: str) -> Answer:
    """Of a request whose answer the client did not hand on, or that got none, by the name that it has for that."""
    if (known := _BY_NAME.get(name)) is not None:
        return known
    if "CANCEL" in name:
        return Answer.CANCELLED
    if _CHECKSUM_FAULT.search(name):
        return Answer.CORRUPTED
    if "CREDENTIALS" in name or "SIGNING" in name:
        return Answer.CREDENTIALS
    return Answer.TIMEOUT if _CLOCK.search(name) else Answer.UNREACHABLE


def code_in(body: bytes | None) -> str:
    """The code of an error's XML; empty where there is none."""
    match = _CODE.search(body or b"")
    return match[1].decode() if match else ""


_REMEDIES: Final = {
    Answer.REFUSED: "check what the credentials may do with this bucket (s3:ListBucket, GetObject, PutObject, DeleteObject)",
    Answer.CREDENTIALS: "check the credentials, the region they are used for, and this machine's clock",
    Answer.WRONG_PLACE: "check s3_region: the bucket is in another one",
    Answer.NO_BUCKET: "create the bucket, or name another",
    Answer.UNSUPPORTED: "this store does not do what was asked",
    Answer.UNREACHABLE: "check the endpoint, the network, and whether it speaks TLS",
    Answer.TIMEOUT: "check the endpoint and the network",
}


class S3Error(AdapterError):
    """The store failed, and its answer is not about an object."""

    def __init__(self, adapter: str, action: str, answer: Answer, status: int | None, detail: str) -> None:
        remedy = f"; {_REMEDIES[answer]}" if answer in _REMEDIES else ""
        said = f"HTTP {status} {detail}".strip() if status else detail or answer.value
        super().__init__(adapter, f"{adapter}: {action}: {said} ({answer.value}){remedy}")
        self.answer = answer
        self.status = status

    @property
    def is_passing(self) -> bool:
        return self.answer in PASSING


class Reply(NamedTuple):
    """What came of one request."""

    answer: Answer
    status: int | None = None
    detail: str = ""
    """The store's code or the client's name for it; neither holds secrets."""
    length: int = 0
    """Of the object, where the answer is about a whole one."""
    etag: str = ""
    """Which version of the object it is about, where the first bytes of it were asked for."""
