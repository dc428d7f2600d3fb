"""Hand-offs from an engine that prefills to one that decodes, as proxies speak of them in `kv_transfer_params`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from lmcache_client import EngineKey
from lmcache_client.handoff import HANDOFF_CANCEL, HANDOFF_CHUNK, HANDOFF_COMPLETE, HANDOFF_OPEN, ID_CHARS_MAX
from lmcache_vllm.server_port import ServerPort
from lmcache_vllm.settings import Settings

HANDOFF_ID: Final = "lmcache.handoff_id"
OURS: Final = "lmcache.handoff"
HANDOFF_SERVER: Final = "lmcache.handoff_server"
_NAME_CHARS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Handoff:
    """What a request has to do with one."""

    id: str
    gives: bool
    """This engine computes the prompt, and another one takes it. Otherwise this is the other one."""
    may_open_later: bool = False
    """The engine that gives was asked at the same time."""
    server: str = ""
    """The name of that engine's server; empty: it is not known, or this engine's."""


class HandoffParams:
    """Reads and writes the parameters for one engine."""

    def __init__(self, settings: Settings, engine_id: str) -> None:
        self._engine_id = engine_id
        self._gives = settings.pd_role in ("producer", "both")
        self._takes = settings.pd_role in ("receiver", "both")
        self._address = urlsplit(settings.url)

    def read(self, params: Any, request_id: str) -> Handoff | None:
        """None for requests that hand nothing over, and where this engine does not do what they ask for."""
        if not isinstance(params, Mapping):
            return None
        given_id = params.get(HANDOFF_ID)
        if params.get("do_remote_decode"):
            return _handoff(given_id or self._id(self._engine_id, request_id), gives=True) if self._gives else None
        if not (self._takes and params.get("do_remote_prefill") and params.get(OURS) is True):
            return None
        engine_id, prefill_id = params.get("remote_engine_id"), params.get("remote_request_id")
        is_over = isinstance(engine_id, str) and isinstance(prefill_id, str)
        server = params.get(HANDOFF_SERVER)
        return _handoff(
            given_id or (self._id(engine_id, prefill_id) if is_over else None),
            gives=False,
            may_open_later=not is_over,
            server=server if isinstance(server, str) and len(server) <= _NAME_CHARS_MAX else "",
        )

    def write(self, handoff: Handoff, request_id: str, tokens: int, server: str) -> dict[str, Any]:
        """For the engine that decodes, by way of the proxy. `tokens`: what it finds on the server of that name."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": self._address.hostname,
            "remote_port": self._address.port,
            "remote_num_tokens": tokens,
            "remote_block_ids": [],
            OURS: True,
            HANDOFF_ID: handoff.id,
            HANDOFF_SERVER: server,
        }

    @staticmethod
    def _id(engine_id: Any, request_id: Any) -> str:
        return f"{engine_id}/{request_id}"


def _handoff(handoff_id: Any, *, gives: bool, may_open_later: bool = False, server: str = "") -> Handoff | None:
    if not isinstance(handoff_id, str) or not 0 < len(handoff_id) <= ID_CHARS_MAX:
        return None
    return Handoff(handoff_id, gives, may_open_later, server)


@dataclass(slots=True)
class _Given:
    """A hand-off of one request."""

    id: str
    key: Callable[[], EngineKey | None]
    is_open: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    """By store: chunks of the prompt up to its end."""
    left: set[int] | None = None
    """Of a request that is over: stores that are not."""


class GivenHandoffs:
    """Says of each hand-off that this engine gives how far it is. One thread."""

    def __init__(self, port: ServerPort) -> None:
        self._port = port
        self._given: dict[str, _Given] = {}
        """By request."""

    def begin(self, request_id: str, handoff_id: str, key: Callable[[], EngineKey | None]) -> None:
        """`key` names the whole prompt on the server, and is None as long as that is not known."""
        given = self._given[request_id] = _Given(handoff_id, key)
        self._open(given)

    def knows(self, request_id: str) -> bool:
        return request_id in self._given

    def store_begins(self, request_id: str, store: int, chunks: int) -> None:
        """A store of its chunks up to this number. For requests that hand nothing over, this does nothing."""
        if given := self._given.get(request_id):
            given.ends[store] = chunks

    def store_over(self, request_id: str, store: int) -> None:
        """For requests that hand nothing over, this does nothing."""
        given = self._given.get(request_id)
        if given is None:
            return
        self._open(given)
        if (chunks := given.ends.pop(store, None)) is not None:
            self._port.hand_over(HANDOFF_CHUNK, given.id, chunks)
        if given.left is not None:
            self.finish(request_id, given.left - {store})

    def finish(self, request_id: str, stores: set[int]) -> None:
        """The prompt was computed; it is complete when these stores are over."""
        given = self._given[request_id]
        self._open(given)
        if stores:
            given.left = stores
            return
        del self._given[request_id]
        self._port.hand_over(HANDOFF_COMPLETE, given.id)

    def cancel(self, request_id: str) -> None:
        """Nothing follows."""
        if (given := self._given.pop(request_id, None)) is not None:
            self._port.hand_over(HANDOFF_CANCEL, given.id)

    def cancel_all(self) -> None:
        for request_id in list(self._given):
            self.cancel(request_id)

    def _open(self, given: _Given) -> None:
        if not given.is_open and (key := given.key()) is not None:
            given.is_open = True
            self._port.hand_over(HANDOFF_OPEN, given.id, key)
