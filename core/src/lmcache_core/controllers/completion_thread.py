"""One thread for the completions and the deadlines of all adapters."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence

from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.events import AdapterHealthChanged, Publisher
from lmcache_core.controllers.adapter_port import AdapterPort
from lmcache_core.jobs.inbox import Inbox


class CompletionThread:
    """Waits for every adapter at once; `run` is its body, for the supervisor.  Everything else is for any thread."""

    def __init__(self, ports: Sequence[AdapterPort], clock: Clock, events: Publisher | None = None) -> None:
        self._lock = threading.Lock()  # held to change the ports, not to look at them
        self._ports = tuple(ports)
        self._clock = clock
        self._events = events
        self._wakes: Inbox[None] = Inbox()
        self._stop = False
        for port in ports:
            port.call_when_armed(self._wakes.wake)

    def add(self, port: AdapterPort) -> None:
        """Before the port is given its first job."""
        port.call_when_armed(self._wakes.wake)
        self._change(lambda ports: (*ports, port))

    def remove(self, port: AdapterPort) -> None:
        """Nothing more will be heard of it."""
        self._change(lambda ports: tuple(other for other in ports if other is not port))

    def look_again(self) -> None:
        """An adapter was closed, and with it its descriptor, whose number may be somebody else's by now."""
        self._change(lambda ports: (*ports,))

    def run(self) -> None:
        while not self._stop:
            self._serve(self._ports)

    def _serve(self, ports: tuple[AdapterPort, ...]) -> None:
        """As long as these are the ports."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        by_descriptor: dict[int, AdapterPort] = {}
        for port in ports:
            if (descriptor := port.descriptor()) is not None:
                poll.register(descriptor, select.POLLIN)
                by_descriptor[descriptor] = port
        for port in ports:
            port.deliver()  # what was left when this thread failed, or the port was looked at last
        while not self._stop and ports is self._ports:
            now = self._clock.monotonic()
            deadlines = [deadline for port in ports if (deadline := port.expire(now)) is not None]
            self._tell_health(ports)
            timeout_ms = max(0.0, min(deadlines) - now) * 1000 + 1 if deadlines else None
            for descriptor, events in poll.poll(timeout_ms):
                if (ready := by_descriptor.get(descriptor)) is None:
                    self._wakes.drain()
                elif events & select.POLLNVAL:
                    poll.unregister(descriptor)
                    ready.cut_off()
                else:
                    ready.deliver()

    def _tell_health(self, ports: Sequence[AdapterPort]) -> None:
        for port in ports:
            healthy = port.health_change()
            if healthy is not None and self._events is not None:
                self._events.publish(AdapterHealthChanged(port.name, healthy))

    def _change(self, function: Callable[[tuple[AdapterPort, ...]], tuple[AdapterPort, ...]]) -> None:
        with self._lock:
            self._ports = function(self._ports)
        self._wakes.wake()

    def stop(self) -> None:
        self._stop = True
        self._wakes.wake()
