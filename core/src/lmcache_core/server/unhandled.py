"""Requests of the protocol that this server has nobody for, so that its operator learns what is missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lmcache_client.codec import Frame, decode_operation_frame
from lmcache_client.errors import ProtocolError
from lmcache_client.operations import KNOWN_REQUESTS

logger = logging.getLogger(__name__)

_NAMES: Final[Mapping[int | str, str]] = MappingProxyType(
    {label: known.name for known in KNOWN_REQUESTS for label in (known.name, known.wire_id) if label is not None}
)
NO_REMEDIES: Final[Mapping[str, str]] = MappingProxyType({})


class UnhandledRequests:
    """Written by the router's thread, read by any.  `remedies` says for some operations what would answer them."""

    def __init__(self, remedies: Mapping[str, str] = NO_REMEDIES) -> None:
        self._remedies = remedies
        self._counts: dict[str, int] = {}

    def note(self, frame: Frame) -> None:
        """Nobody handles what this frame names.  The first one of each operation that has a remedy is a warning."""
        try:
            name = _NAMES.get(decode_operation_frame(frame))
        except ProtocolError:
            return
        if name is None:
            return  # not of this protocol
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] == 1 and name in self._remedies:
            logger.warning(
                "an engine asks for what this server cannot do, and runs uncached operation=%s remedy=%s",
                name,
                self._remedies[name],
            )

    def status(self) -> dict[str, dict[str, object]]:
        """How often each was asked for, and what would help."""
        return {
            name: {"count": count, "remedy": self._remedies.get(name, "")} for name, count in list(self._counts.items())
        }
