"""The store server: a thread for each connection, whose socket blocks."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from typing import Final

from lmcache_core import FaultLog, ProtocolError, ResourceError, SystemClock
from lmcache_l2_lm.frames import REQUEST_BYTES, Answer, Request, Verb, pack_answer, parse_request
from lmcache_l2_lm.line import Line
from lmcache_l2_lm.store_server.values import BrokenOffError, Medium, MediumError, ShortageError, Space, Values

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1024
STALL_SECONDS: Final = 30.0
"""How long a client may neither send what is missing of a message nor take an answer."""
FRAME_SECONDS: Final = 30.0
"""How long a message may take from its first byte on, and the answer to it, beside what `SLOWEST` allows for its length."""
SLOWEST: Final = 1 << 20
"""Bytes in a second; a slower client is taken for one that hangs."""
STOP_SECONDS: Final = 5.0
ROOM_SECONDS: Final = 1.0
"""How long a connection that is closed for a new one may take to end."""
BACKLOG: Final = CONNECTIONS_MAX
"""A connection beyond it waits a second for its next attempt."""


class StoreServer:
    """Listens from `__init__` on, answers from `start` to `stop`."""

    def __init__(
        self, host: str, port: int, values: Values, medium: Medium, *, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        """Raises ResourceError where it cannot listen there."""
        self._values: Final = values
        self._medium: Final = medium
        self._connections_max: Final = connections_max
        self._faults: Final = FaultLog(logger, SystemClock(), "store_server")
        self._lock: Final = threading.Lock()  # guards the one below
        self._clients: Final[dict[_Client, threading.Thread]] = {}
        self._wake, self._woken = socket.socketpair()
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener: Final = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
        except OSError as error:
            self._wake.close()
            self._woken.close()
            raise ResourceError(
                f"{host}:{port} cannot be bound ({error.strerror}); name another HOST or PORT, or end what listens there"
            ) from None
        self._listener.setblocking(False)
        self._accepting: Final = threading.Thread(target=self._accept, name="store-server", daemon=True)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        self._accepting.start()

    def stop(self) -> None:
        """Ends every connection; what is not whole is not kept."""
        self._wake.send(b"x")
        self._accepting.join()
        with self._lock:
            clients = dict(self._clients)
        for client in clients:
            client.line.shutdown()
        end = time.monotonic() + STOP_SECONDS
        for thread in clients.values():
            thread.join(max(end - time.monotonic(), 0.0))
        for each in (self._listener, self._wake, self._woken):
            each.close()

    # How.

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    return
                try:
                    sock, _ = self._listener.accept()
                except OSError as error:
                    self._faults.warning("a connection cannot be accepted (%s)", error.strerror)
                    time.sleep(0.05)  # where there are no descriptors, it stays ready
                    continue
                self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            client = _Client(Line(sock, STALL_SECONDS))
        except OSError:  # it has gone already
            sock.close()
            return
        if not self._make_room():
            client.line.close()
            self._faults.warning("%d connections are busy; a new one was closed", self._connections_max)
            return
        thread = threading.Thread(target=self._serve, args=(client,), name="store-client", daemon=True)
        with self._lock:
            self._clients[client] = thread
        try:
            thread.start()
        except RuntimeError as error:
            self._faults.warning("a connection was closed: %s", error)
            self._end(client)

    def _make_room(self) -> bool:
        """For one more connection.  False: all are busy."""
        with self._lock:
            if len(self._clients) < self._connections_max:
                return True
            oldest, thread = min(self._clients.items(), key=lambda each: each[0].idle_since)
        if oldest.idle_since == math.inf:
            return False
        oldest.line.shutdown()
        thread.join(ROOM_SECONDS)  # or it would be chosen again, and there would be more threads than connections
        self._faults.warning(
            "%d connections are open; the one that was unused longest was closed", self._connections_max
        )
        return True

    def _serve(self, client: _Client) -> None:
        try:
            while True:
                client.idle_since = time.monotonic()
                client.line.wait()
                client.idle_since = math.inf
                client.next(self._values, self._medium, self._faults)
        except ProtocolError as error:
            self._faults.warning("a connection was closed: it sent %s", error)
        except TimeoutError:
            self._faults.warning("a connection was closed: it stayed in the middle of a message")
        except OSError:
            pass  # it has gone
        except Exception:  # noqa: BLE001 - a thread's top
            self._faults.exception("a connection was closed")
        finally:
            self._end(client)

    def _end(self, client: _Client) -> None:
        client.line.close()
        with self._lock:
            self._clients.pop(client, None)


class _Client:
    """One connection.  Belongs to its thread, but for `line.shutdown` and `idle_since`."""

    def __init__(self, line: Line) -> None:
        self.line: Final = line
        self.idle_since = time.monotonic()
        """Infinite while it is in a message."""
        self._head: Final = memoryview(bytearray(REQUEST_BYTES))

    def next(self, values: Values, medium: Medium, faults: FaultLog) -> None:
        """Do what the next request says.  Raises OSError, ProtocolError."""
        self.line.fill(self._head, time.monotonic() + FRAME_SECONDS)
        request = parse_request(self._head)
        if request.verb is Verb.PUT:
            self._put(request, values, medium, faults)
        elif request.verb is Verb.GET:
            self._get(request, values, faults)
        else:
            found = request.verb is Verb.HEALTH or values.has(request.key)
            self.line.send(pack_answer(Answer(found)), end=_end_of(0))

    def _put(self, request: Request, values: Values, medium: Medium, faults: FaultLog) -> None:
        """Where it is refused, the client's next request shows it: there is nothing under this key then."""
        end, left = _end_of(request.length), request.length
        try:
            space = values.space(request.length)
            try:
                space.more()
                self._receive(request, space, values, medium, end)
            finally:
                left = space.left
                space.release()
            values.counts["put"] += 1
        except MediumError as error:
            faults.warning("a value of %d bytes was refused: %s", request.length, error)
            values.remove(request.key)
            values.counts["refused"] += 1
            self.line.skip(left, end)

    def _receive(self, request: Request, space: Space, values: Values, medium: Medium, end: float) -> None:
        """Raises MediumError, OSError, TimeoutError."""
        draft = medium.begin(request.key, request.form, request.length)
        is_put = False
        try:
            while space.left:
                got = self.line.some(draft.place()[: space.more()], end)
                space.came(got)
                draft.filled(got)
                if time.monotonic() > end:
                    raise TimeoutError
            values.put(request.key, draft.finish())
            space.passed_on()
            is_put = True
        finally:
            if not is_put:
                draft.abandon()

    def _get(self, request: Request, values: Values, faults: FaultLog) -> None:
        with values.lease(request.key) as stored:
            try:
                if stored is not None:
                    stored.check()
                    head = pack_answer(Answer(True, stored.length, stored.form))
                    stored.send(self.line, head, _end_of(stored.length))
                    values.counts["hit"] += 1
                    return
            except ShortageError as error:
                faults.warning("a value was not read: %s", error)
            except MediumError as error:
                faults.warning("a value was removed: %s", error)
                values.remove(request.key, stored)
                if isinstance(error, BrokenOffError):
                    raise ConnectionAbortedError from None
        values.counts["missed"] += 1
        self.line.send(pack_answer(Answer(False)), end=_end_of(0))


def _end_of(length: int) -> float:
    return time.monotonic() + FRAME_SECONDS + length / SLOWEST
