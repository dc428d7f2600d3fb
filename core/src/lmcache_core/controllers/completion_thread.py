"""One thread for the completions and the deadlines of all adapters."""

from __future__ import annotations

import select
from collections.abc import Sequence

from lmcache_core.contracts.clock import Clock
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.jobs.inbox import Inbox


class CompletionThread:
    """Waits for every adapter at once; `run` is its body, for the supervisor."""

    def __init__(self, ports: Sequence[AdapterPort], clock: Clock) -> None:
        self._ports = ports
        self._clock = clock
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        for port in ports:
            port.call_when_armed(self._wakes.wake)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        by_descriptor: dict[int, AdapterPort] = {}
        for port in self._ports:
            if (descriptor := port.descriptor()) is not None:
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = port
        for port in self._ports:
            port.deliver()  # what was left when this thread failed
        while not self._stop:
            now = self._clock.monotonic()
            deadlines = [deadline for port in self._ports if (deadline := port.expire(now)) is not None]
            timeout_ms = max(0.0, min(deadlines) - now) * 1000 + 1 if deadlines else None
            for descriptor, events in poll.poll(timeout_ms):
                if (ready := by_descriptor.get(descriptor)) is None:
                    self._wakes.drain()
                elif events & select.POLLNVAL:
                    poll.unregister(descriptor)
                    ready.cut_off()
                else:
                    ready.deliver()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()
