"""What a thread asks a store over one connection.

Each raises OSError (TimeoutError where `end`, by the monotonic clock, has passed) or ProtocolError; the connection is of no use
any more then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from lmcache_core import HEADER_BYTES, BorrowedBuffer, Check, ObjectKey, Outcome, ProtocolError, check
from lmcache_l2_adapter import PassingDigest
from lmcache_l2_lm.config import LmSettings
from lmcache_l2_lm.frames import (
    ANSWER_BYTES,
    Request,
    Verb,
    bytes_form,
    key_of,
    pack_request,
    parse_answer,
)
from lmcache_l2_lm.line import Line, connect

SKIPPED_MAX: Final = 1 << 20
"""A value that is not wanted is taken in up to this length; beyond it, a new connection costs less."""
_ANY_KEY: Final = b"lmcache@1@0@0@uint8"
"""The public store looks at the key of a HEALTH, too."""


def open_line(settings: LmSettings, timeout_seconds: float) -> Line:
    """A connection to a store that answers."""
    line = connect(settings.host, settings.port, min(settings.connect_timeout_seconds, timeout_seconds))
    try:
        end = time.monotonic() + timeout_seconds
        line.send(pack_request(Request(Verb.HEALTH, _ANY_KEY)), end=end)
        if not line.answer(end).found:
            raise ProtocolError("it says that it is not well")
    except BaseException:
        line.close()
        raise
    return line


def exist(line: Line, end: float, names: Sequence[bytes]) -> list[bool]:
    """All are asked before the first answer is read."""
    line.send(b"".join(pack_request(Request(Verb.EXIST, name)) for name in names), end=end)
    answers = memoryview(bytearray(ANSWER_BYTES * len(names)))
    line.fill(answers, end)
    return [parse_answer(answers[at : at + ANSWER_BYTES]).found for at in range(0, len(answers), ANSWER_BYTES)]


def put(line: Line, end: float, key: ObjectKey, buffer: BorrowedBuffer, *, replaces: bool) -> bool:
    """False: the store refuses it.  A PUT has no answer, so an EXIST behind it asks whether the value is there.  Without
    `replaces`, another EXIST comes first, and a value that exists is not sent."""
    name = key_of(key)
    if not replaces and exist(line, end, [name])[0]:
        return True
    head = pack_request(Request(Verb.PUT, name, buffer.length, bytes_form(buffer.length)))
    line.send(head, buffer.view, pack_request(Request(Verb.EXIST, name)), end=end)
    return line.answer(end).found


def get(line: Line, end: float, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
    """Straight into the buffer.  DONE: it is this object, by its header and digests."""
    line.send(pack_request(Request(Verb.GET, key_of(key))), end=end)
    found, length, _ = line.answer(end)
    if not found:
        return Outcome.MISSING
    if not buffer.takes(length):
        return _outcome_of_other_length(line, end, key, length)
    whole, digest = buffer.view[:length], PassingDigest()
    line.fill(whole, end, digest.passed)
    return check(whole, key, digest.digest(), at_most=buffer.at_most).outcome


def _outcome_of_other_length(line: Line, end: float, key: ObjectKey, length: int) -> Outcome:
    start = memoryview(bytearray(min(length, HEADER_BYTES)))
    line.fill(start, end)
    if length - len(start) > SKIPPED_MAX:
        line.close()
    else:
        line.skip(length - len(start), end)
    found: Check | None = check(start, key) if length else None
    return Outcome.FOREIGN if found is not None and found.outcome is Outcome.FOREIGN else Outcome.DAMAGED
