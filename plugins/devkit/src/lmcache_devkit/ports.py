"""Ports for servers of tests that cannot choose a free one."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_LOWEST: Final = 12_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different TCP ports of the loopback interface without a listener now.

    They are below those that the kernel hands to outgoing connections, any of which could take a port between this call and
    the server's start, and drawn at random, so that tests that run side by side do not meet.  Raises OSError when there are
    fewer."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(_LOWEST, _first_of_outgoing()), k=100 + count):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(
        f"{count} free ports were asked for, {len(found)} of {100 + count} between {_LOWEST} and the kernel's are free"
    )


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether the port has no listener, and had none a moment ago."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _first_of_outgoing() -> int:
    """Where the kernel's own range begins, or the most usual begin of it where that cannot be read or leaves no room."""
    try:
        first = int(_RANGE.read_text().split()[0])
    except OSError:
        first = 0
    return first if first > 2 * _LOWEST else 32_768
