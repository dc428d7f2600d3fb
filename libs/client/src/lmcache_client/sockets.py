"""ZeroMQ sockets that speak ZMTP 3 and nothing older.

libzmq also accepts handshakes of ZMTP 1.0, which have no greeting: the first bytes of a connection are frames, whatever they
are.  A web page could then send operations to a port of this machine in the body of an HTTP request.  A socket with a ZAP
domain refuses every handshake before ZMTP 3.0, whose greeting no browser can be made to send.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import zmq

SocketT = TypeVar("SocketT", bound=zmq.Socket[Any])
DOMAIN: Final = b"lmcache"
"""What a ZAP handler is asked for; in a context without one libzmq admits every ZMTP 3 peer of this domain."""


def open_socket(context: zmq.Context[SocketT], kind: int) -> SocketT:
    """Every socket that binds or connects over tcp:// or ipc:// is opened here.  The caller owns it."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    return socket
