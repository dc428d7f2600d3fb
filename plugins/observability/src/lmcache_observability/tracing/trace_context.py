"""Which trace a request belongs to: the engine's, where it sends a W3C `traceparent`, or one of its own."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED: Final = 1
_RATIO_BITS: Final = 56
"""As in W3C trace context level 2: the last seven bytes of a trace id are random."""


class TraceContext(NamedTuple):
    trace_id: int
    parent_id: int | None
    """The engine's span; None where the trace begins here."""
    sampled: bool | None
    """The engine's decision; None without one."""


def trace_context(traceparent: str | None, boot_id: str, request_id: str) -> TraceContext:
    """Without a usable `traceparent` the trace id follows from the server's run and the request, so that a reader who knows
    both can name it."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    if found and found[1] != "ff" and not (found[1] == "00" and found[5]):
        trace_id, parent_id = int(found[2], 16), int(found[3], 16)
        if trace_id and parent_id:
            return TraceContext(trace_id, parent_id, bool(int(found[4], 16) & _SAMPLED))
    text = f"{boot_id}\0{request_id}".encode("utf-8", "surrogatepass")
    return TraceContext(int.from_bytes(blake2b(text, digest_size=16).digest(), "big") or 1, None, None)


def is_sampled(context: TraceContext, ratio: float) -> bool:
    """The engine's decision where there is one; otherwise this share of all trace ids, the same ones on every server."""
    if context.sampled is not None:
        return context.sampled
    return (context.trace_id & ((1 << _RATIO_BITS) - 1)) < ratio * (1 << _RATIO_BITS)


def trace_id_text(trace_id: int) -> str:
    """As collectors and dashboards write it."""
    return f"{trace_id:032x}"
