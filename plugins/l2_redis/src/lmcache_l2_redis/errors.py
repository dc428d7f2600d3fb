"""What a server's refusals mean here.

ReplyError                the server understood, and says no; the connection stays usable
 |- RedirectedError       another node has that slot of the cluster
 |- PassingError          not now: loading, a failover, a slot that moves.  A retry may help
 |- DeniedError           this user may not, or the password is wrong
 |- NoRoomError           maxmemory is reached and nothing may be evicted
 '- WrongTypeError        the value of that name is not a string
"""

from __future__ import annotations

from typing import Final

from lmcache_core import ProtocolError
from lmcache_l2_redis.address import PORT_MAX, Address
from lmcache_l2_redis.replies import ErrorReply

_PASSING: Final = frozenset(
    {"LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF"}
)
_DENIED: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})


class ReplyError(Exception):
    """`code` is the first word of what the server says."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code: Final = text.partition(" ")[0]


class RedirectedError(ReplyError):
    """`asks_once`: only this command goes there, and the slot stays where it was."""

    def __init__(self, text: str, slot: int, address: Address, *, asks_once: bool) -> None:
        super().__init__(text)
        self.slot: Final = slot
        self.address: Final = address
        self.asks_once: Final = asks_once


class PassingError(ReplyError):
    pass


class DeniedError(ReplyError):
    pass


class NoRoomError(ReplyError):
    pass


class WrongTypeError(ReplyError):
    pass


def error_of(reply: ErrorReply, asked: Address) -> Exception:
    """What to raise for it.  `asked` is who said so: a redirection without a host means that one."""
    code = reply.code
    if code in ("MOVED", "ASK"):
        return _redirection(reply, asked)
    if code in _PASSING:
        return PassingError(reply.text)
    if code in _DENIED:
        return DeniedError(reply.text)
    if code == "OOM":
        return NoRoomError(reply.text)
    if code == "WRONGTYPE":
        return WrongTypeError(reply.text)
    return ReplyError(reply.text)


def _redirection(reply: ErrorReply, asked: Address) -> Exception:
    words = reply.text.split()
    try:
        _, slot, place = words
        host, _, port = place.rpartition(":")
        number = int(port)
        if not 1 <= number <= PORT_MAX:
            raise ValueError(port)
        address = Address(host.strip("[]") or asked.host, number)
        return RedirectedError(reply.text, int(slot), address, asks_once=reply.code == "ASK")
    except ValueError:
        return ProtocolError(f"{asked}: '{reply.text[:80]}' names no other server")
