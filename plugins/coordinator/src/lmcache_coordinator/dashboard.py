"""`GET /dashboard`, its figures, and `GET /conditions`: what people see of a fleet."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal

from litestar import Request, Response, delete, get
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_coordinator.registry import UnknownInstanceError
from lmcache_core import masked, salt_text, server_state, state_reason
from lmcache_http.models import Answer
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part
from lmcache_http.thread_list import thread_list

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

_FILES: Final = {
    "/dashboard": ("index.html", "text/html"),
    "/dashboard/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard/dashboard.js": ("dashboard.js", "text/javascript"),
}
_HEADERS: Final = {
    # names come from servers and tenants: only the page's own files are run, and no other page can frame it
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
_TAG: Final = "dashboard"
_ID: Final = {"instance_id": "The server's `--instance-id`."}
_UNKNOWN: Final = {404: "the instance is not registered"}
TENANTS_MAX: Final = 200
_OURS: Final = "LMCACHE_"
"""Variables of the environment that begin so are shown; others are none of the coordinator's."""


class ConditionEntry(Answer):
    name: str
    severity: str
    reason: str
    remedy: str
    subject: str
    counts: dict[str, int]
    since: float
    """Seconds since the epoch."""


class FleetConditions(Answer):
    """`state` is `healthy`, `degraded` or `unhealthy`; `reason` says why, and is empty where it is healthy.  `leader`: this
    coordinator evicts; others on the same state do not."""

    state: str
    leader: bool
    reason: str
    conditions: list[ConditionEntry]


class InstanceDetails(Answer):
    registered: float
    http_port: int
    mq_port: int
    p2p_advertised_url: str
    incarnation: str
    metadata: dict[str, Any]
    sources: list[dict[str, Any]]


class Removed(Answer):
    instance_id: str
    status: Literal["removed"] = "removed"


class DashboardData(Answer):
    """Everything that the dashboard shows.  Meant for its own page, whose version it follows, and `lmcache fleet`."""

    now: float
    overview: dict[str, Any]
    conditions: list[ConditionEntry]
    instances: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    tenants: list[dict[str, Any]]
    threads: list[dict[str, Any]]
    garbage: list[dict[str, Any]]
    settings: list[dict[str, Any]]
    environment: list[dict[str, Any]]


def conditions(coordinator: Coordinator) -> FleetConditions:
    active = coordinator.conditions.active()
    return FleetConditions(
        state=server_state(active).value,
        leader=coordinator.leadership.is_leader,
        reason=state_reason(active),
        conditions=[ConditionEntry(**each.as_dict()) for each in active],
    )


def snapshot(coordinator: Coordinator) -> DashboardData:
    """Takes some milliseconds, more with thousands of servers; no lock is held for all of it."""
    health, lags = conditions(coordinator), coordinator.journals.lags()
    counts = coordinator.placements.counts()
    keys, keys_of_worker = Counter[str](), Counter[tuple[str, int]]()
    workers_of: dict[str, set[int]] = {}
    for location, count in counts.items():
        keys[location.instance] += count
        workers_of.setdefault(location.instance, set()).add(location.worker)
        keys_of_worker[location.instance, location.worker] += count
    instances, workers = list[dict[str, Any]](), list[dict[str, Any]]()
    for each, silent_seconds in coordinator.registry.silences():
        state = "silent" if silent_seconds > coordinator.settings.instance_timeout / 2 else "live"
        of_it = sorted(workers_of.get(each.instance_id, {0}))
        sources = lags.get(each.instance_id, ())
        instances.append(
            {
                "instance_id": each.instance_id,
                "address": _address(each.says.ip, each.says.http_port),
                "workers": len(of_it),
                "keys": keys[each.instance_id],
                "gaps": sum(lag.gaps for lag in sources),
                "silent_seconds": silent_seconds,
                "state": state,
            }
        )
        workers += [
            {
                "worker": worker,
                "instance_id": each.instance_id,
                "address": each.says.ip,
                "port": each.says.mq_port,
                "state": state,
                "keys": keys_of_worker[each.instance_id, worker],
                "silent_seconds": silent_seconds,
            }
            for worker in of_it
        ]
    used = coordinator.usage.by_salt()
    overview = {
        "state": health.state,
        "reason": health.reason,
        "leader": health.leader,
        "up_seconds": time.time() - coordinator.started_at,
        "instances": len(instances),
        "dropped": coordinator.registry.timed_out,
        "keys": sum(keys.values()),
        "shared_keys": keys[""],
        "keys_taken": coordinator.journals.counts().applied,
        "quiet_seconds": coordinator.journals.quiet_seconds(),
        "oldest_seconds": max((each["silent_seconds"] for each in instances), default=None),
        "gaps": sum(each["gaps"] for each in instances) + coordinator.posted.gaps,
        "incomplete": [each.name for each in coordinator.journals.incomplete()],
        "size_bytes": coordinator.placements.size_bytes(),
        "usage_bytes": sum(used.values()),
        "tenants": len({*used, *coordinator.quotas.last.limits}),
        "deleted": coordinator.eviction.deleted_ever,
        "sent_again": coordinator.eviction.sent_again,
    }
    return DashboardData(
        now=time.time(),
        overview=overview,
        conditions=health.conditions,
        instances=instances,
        workers=workers,
        tenants=_tenants(coordinator, used),
        threads=[row.model_dump(exclude={"stack", "supervised"}) for row in thread_list({})],
        garbage=_garbage(),
        settings=_settings(coordinator),
        environment=_environment(os.environ),
    )


def _address(ip: str, port: int) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}:{port}" if port else host


def _tenants(coordinator: Coordinator, used: Mapping[str, int]) -> list[dict[str, Any]]:
    """Those that use most; `lmcache fleet usage` has all."""
    own = coordinator.quotas.last.limits
    shown = sorted({*used, *own}, key=lambda salt: (-used.get(salt, 0), salt))[:TENANTS_MAX]
    return [
        {
            "salt": salt_text(salt),
            "used_bytes": used.get(salt, 0),
            "limit_bytes": coordinator.quotas.last.limit(salt) if coordinator.quotas.last.were_set else None,
            "own": salt in own,
            "deleted": coordinator.eviction.deleted[salt],
        }
        for salt in shown
    ]


def instance_details(coordinator: Coordinator, instance_id: str) -> dict[str, Any]:
    """Raises UnknownInstanceError."""
    for each in coordinator.registry.live():
        if each.instance_id == instance_id:
            sources = coordinator.journals.lags().get(instance_id, ())
            return {
                "registered": each.registered_at,
                "http_port": each.says.http_port,
                "mq_port": each.says.mq_port,
                "p2p_advertised_url": each.says.p2p_advertised_url,
                "incarnation": each.says.incarnation,
                "metadata": masked(dict(each.says.metadata)),
                "sources": [lag._asdict() for lag in sources],
            }
    raise UnknownInstanceError(f"instance '{instance_id}' is not registered")


def _garbage() -> list[dict[str, Any]]:
    """Of Python's collector, by generation."""
    return [
        {"generation": number, "objects": waiting, **stats}
        for number, (waiting, stats) in enumerate(zip(gc.get_count(), gc.get_stats(), strict=True))
    ]


def _settings(coordinator: Coordinator) -> list[dict[str, Any]]:
    settings = coordinator.settings
    shown = masked(settings)
    return [
        {"name": name, "value": shown[name], "given": name in settings.model_fields_set, "about": field.description}
        for name, field in type(settings).model_fields.items()
    ]


def _environment(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    ours = masked({name: value for name, value in variables.items() if name.startswith(_OURS)})
    return [{"name": name, "value": value} for name, value in sorted(ours.items())]


def dashboard_routes(coordinator: Coordinator) -> Sequence[BaseRouteHandler]:
    @get(
        "/conditions",
        operation=Operation(
            "What is wrong, the most severe first; `/healthz` says only that it answers.", FleetConditions
        ),
    )
    async def read_conditions() -> dict[str, Any]:
        return (await sync_to_thread(conditions, coordinator)).model_dump()

    @get("/dashboard/data", operation=Operation("What the dashboard shows.", DashboardData, tag=_TAG))
    async def data() -> dict[str, Any]:
        return (await sync_to_thread(partial(snapshot, coordinator))).model_dump()

    @get(
        "/dashboard/instances/{instance_id:str}",
        operation=Operation("What is known of one server.", InstanceDetails, path=_ID, refusals=_UNKNOWN, tag=_TAG),
    )
    async def one_instance(request: Request[Any, Any, Any]) -> dict[str, Any]:
        try:
            details = await sync_to_thread(instance_details, coordinator, path_part(request))
        except UnknownInstanceError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, str(error)) from None
        return InstanceDetails(**details).model_dump()

    @delete(
        "/fleet/instances/{instance_id:str}",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "An operator takes a server out, without its secret. One that lives registers again with its next message.",
            Removed,
            path=_ID,
            refusals=_UNKNOWN,
            tag="instances",
        ),
    )
    async def remove(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = path_part(request)
        try:
            await sync_to_thread(coordinator.registry.remove, name)
        except UnknownInstanceError as error:
            raise ProblemError(HTTPStatus.NOT_FOUND, str(error)) from None
        return Removed(instance_id=name).model_dump()

    return [*(_file(path, *named) for path, named in _FILES.items()), read_conditions, data, one_instance, remove]


def _file(path: str, name: str, media_type: str) -> BaseRouteHandler:
    body = files("lmcache_coordinator").joinpath("page", name).read_bytes()
    about = "The dashboard" if media_type == "text/html" else f"{name} of the dashboard"

    @get(path, operation=Operation(f"{about}.", media_type=media_type, open=True, tag=_TAG))
    async def read() -> Response[bytes]:
        return Response(body, media_type=media_type, headers=_HEADERS)

    return read
