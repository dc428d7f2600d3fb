"""Which trace a measurement belongs to, so that a histogram can point at one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lmcache_observability.tracing.trace_context import trace_context

REQUESTS_MAX: Final = 4096


class RequestTraces:
    """Trace ids of requests, the same that spans have.  What an engine said when a request was looked up is remembered for
    the last `REQUESTS_MAX` of them.  Not thread-safe: the owner holds a lock."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._boot_id = ""
        self._ids: OrderedDict[str, int] = OrderedDict()

    def begin_server(self, boot_id: str) -> None:
        self._boot_id = boot_id

    def begin(self, request_id: str, traceparent: str | None) -> int:
        """The trace of a request that is looked up; 0 where measurements name none."""
        if not self._enabled:
            return 0
        context = trace_context(traceparent, self._boot_id, request_id)
        found = 0 if context.sampled is False else context.trace_id
        if request_id not in self._ids and len(self._ids) >= REQUESTS_MAX:
            self._ids.popitem(last=False)
        self._ids[request_id] = found
        return found

    def of(self, request_id: str) -> int:
        """The trace of a request that was looked up before; 0 where that is not known."""
        return self._ids.get(request_id, 0) if self._enabled else 0
