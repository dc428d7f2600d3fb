"""What a plugin's route answered: checked, and as bytes."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel

from lmcache_core import HttpAnswer


def fault_of_answer(answer: Any) -> str | None:
    """What keeps an answer from being sent, in words; None where nothing does."""
    if not isinstance(answer, HttpAnswer):
        return f"it answered {type(answer).__name__}, which is not an HttpAnswer"
    if not (isinstance(answer.status, int) and 200 <= answer.status <= 599):
        return f"it answered with status {answer.status!r}; 200 to 599 are statuses of answers"
    for text in (answer.media_type, *answer.headers, *answer.headers.values()):
        if not (isinstance(text, str) and text.isascii() and text.isprintable()):
            return f"it answered with {text!r} in a header, which is not a line of ASCII text"
    return None


def encoded(body: Any) -> bytes:
    """Raises TypeError for what JSON has no word for."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, BaseModel):
        return body.model_dump_json().encode()
    return msgspec.json.encode(body)
