"""`/l2/events` and `/events`: what servers that keep no journals report."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from litestar import Request, post
from litestar.handlers import BaseRouteHandler
from pydantic import ConfigDict, Field

from lmcache_coordinator.models import EVENTS_MAX, CacheEvent, EventKey, Events, InstanceId, Recorded
from lmcache_coordinator.posted_events import Taken
from lmcache_coordinator.routes.requests import MEMBERS, Callers, call
from lmcache_http.models import Answer, RequestBody
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

EVENTS_BODY_BYTES_MAX: Final = 8 << 20
_TOO_MANY: Final = {413: f"more than {EVENTS_MAX} events"}
_TYPES: Final = {"store": "store", "delete": "delete", "access": "lookup"}
Text = Annotated[str, Field(max_length=256)]


class BatchEntry(RequestBody):
    model_config = ConfigDict(extra="ignore")

    key: EventKey
    size_bytes: int = Field(0, ge=0, le=2**50)


class Batch(RequestBody):
    """Changes of one tier of one server.  Fields that are not here are not read."""

    model_config = ConfigDict(extra="ignore")

    instance_id: InstanceId
    incarnation: Text | int = ""
    seq: int = Field(ge=1, lt=2**63)
    event_type: Literal["store", "delete", "access", "config"]
    tier: Literal["l1", "l2"] = "l2"
    backend: Text = ""
    shared: bool = True
    entries: list[BatchEntry] = Field(default_factory=list)


class Batches(RequestBody):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "batches": [
                        {
                            "instance_id": "server-1",
                            "incarnation": "1",
                            "seq": 1,
                            "event_type": "store",
                            "tier": "l2",
                            "shared": True,
                            "entries": [
                                {"key": {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0}, "size_bytes": 1024}
                            ],
                        }
                    ]
                }
            ]
        }
    )

    batches: list[Batch] = Field(max_length=EVENTS_MAX)


class BatchesTaken(Answer):
    """In batches."""

    applied: int
    duplicates: int
    stale: int
    """Of a start of the server that is not its last one."""


def event_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    callers = Callers(coordinator.settings.tls_bind_identity)

    @post(
        "/l2/events",
        status_code=HTTPStatus.OK,
        request_max_body_size=EVENTS_BODY_BYTES_MAX,
        operation=Operation(
            "What a server did in shared L2.", Recorded, body=Events, refusals=_TOO_MANY, scopes=MEMBERS, tag="events"
        ),
    )
    async def events(request: Request[Any, Any, Any]) -> dict[str, Any]:
        batch = await read_body(request, Events)
        _check_number(len(batch.events))
        await call(coordinator.registry.admit, batch.instance_id, callers.secret(request, batch.instance_id))
        taken = await call(coordinator.posted.take, batch.instance_id, batch.seq, batch.events)
        return Recorded(recorded=len(batch.events) if taken is Taken.APPLIED else 0).model_dump()

    @post(
        "/events",
        status_code=HTTPStatus.OK,
        request_max_body_size=EVENTS_BODY_BYTES_MAX,
        operation=Operation(
            "The same in the newer form.  Only shared L2 is counted.",
            BatchesTaken,
            body=Batches,
            refusals=_TOO_MANY,
            scopes=MEMBERS,
            tag="events",
        ),
    )
    async def batches(request: Request[Any, Any, Any]) -> dict[str, Any]:
        asked = (await read_body(request, Batches)).batches
        _check_number(sum(len(batch.entries) for batch in asked))
        for instance_id in dict.fromkeys(batch.instance_id for batch in asked):
            await call(coordinator.registry.admit, instance_id, callers.secret(request, instance_id))
        taken = await call(_take_all, coordinator, asked)
        return BatchesTaken(
            applied=taken.count(Taken.APPLIED),
            duplicates=taken.count(Taken.DUPLICATE),
            stale=taken.count(Taken.STALE),
        ).model_dump()

    return events, batches


def _take_all(coordinator: Coordinator, batches: Sequence[Batch]) -> list[Taken]:
    taken = []
    for batch in batches:
        counts = batch.tier == "l2" and batch.shared and batch.event_type in _TYPES
        kind: Any = _TYPES.get(batch.event_type)
        events = [CacheEvent(type=kind, key=entry.key, bytes=entry.size_bytes) for entry in batch.entries if counts]
        taken.append(coordinator.posted.take(batch.instance_id, batch.seq, events, str(batch.incarnation)))
    return taken


def _check_number(events: int) -> None:
    if events > EVENTS_MAX:
        raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{events} events; send at most {EVENTS_MAX} at once")
