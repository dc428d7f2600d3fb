"""What a master says of its whole store, over HTTP."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from typing import Final

from lmcache_core import LMCacheError, Usage

TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 512 << 20
"""Of all names together: about four million of them."""

_ADDRESS: Final = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>[0-9]{1,5})")
_METRIC: Final = re.compile(rb"^(?P<name>master_[a-z_]+)(?:\{[^}]*\})? (?P<value>[0-9.eE+]+)", re.MULTILINE)
_USED, _CAPACITY, _OBJECTS = b"master_allocated_bytes", b"master_total_capacity_bytes", b"master_key_count"


class MasterAnswerError(LMCacheError):
    """The master's HTTP server did not say what was asked."""


def is_reachable(master_server_addr: str) -> bool:
    """Does something listen there?  True where the address is not host:port: the library knows how to find such masters.
    Blocks for two seconds at most."""
    found = _ADDRESS.fullmatch(master_server_addr)
    if found is None:
        return True
    try:
        with socket.create_connection((found["host"], int(found["port"])), 2.0):
            return True
    except (OSError, OverflowError):
        return False


class MasterHttp:
    """Any thread; blocks.  Raises MasterAnswerError."""

    def __init__(self, url: str) -> None:
        self._url: Final = url.rstrip("/")

    def names(self, prefix: str) -> list[str]:
        """Every name in the store that begins so, in order."""
        lines = self._read("/get_all_keys").decode(errors="surrogateescape").split("\n")
        return sorted(name for name in lines if name.startswith(prefix))

    def usage(self) -> Usage:
        """Of the whole store, objects of all servers included."""
        values = {found["name"]: found["value"] for found in _METRIC.finditer(self._read("/metrics"))}
        try:
            used, capacity, objects = (int(float(values[name])) for name in (_USED, _CAPACITY, _OBJECTS))
        except (KeyError, ValueError) as error:
            raise MasterAnswerError(f"{self._url}/metrics does not say how full the store is: {error!r}") from None
        return Usage(used, capacity, objects)

    def _read(self, path: str) -> bytes:
        try:
            # No proxy: the master is a neighbour.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(self._url + path, timeout=TIMEOUT_SECONDS) as answer:
                data: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            raise MasterAnswerError(f"{self._url}{path} did not answer ({error}); check master_metrics_url") from None
        if len(data) > ANSWER_BYTES_MAX:
            raise MasterAnswerError(f"{self._url}{path} answers more than {ANSWER_BYTES_MAX} bytes")
        return data
