"""`/instances`: which servers there are, and what they have."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response, delete, get, post, put
from litestar.handlers import BaseRouteHandler

from lmcache_coordinator.metrics import TEXT, exposition
from lmcache_coordinator.models import Healthy, Heartbeat, InstanceEntry, Instances, Register, Registered
from lmcache_coordinator.registry import InstanceTakenError, Registration, Registry, UnknownInstanceError
from lmcache_coordinator.routes.requests import ID, MEMBERS, UNKNOWN, Callers, StateCalls, call
from lmcache_fleet.messages import L1
from lmcache_http.models import Answer
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

_TAKEN: Final = {409: "the id is another server's, or a view cannot have such a server"}


class Module(Answer):
    """What one tier of one server, or one shared backend, has."""

    tier: str
    """`l1` or `l2`"""
    backend: str
    shared: bool
    keys: int
    used_bytes: int | None
    """Null where the coordinator does not know: it counts bytes of shared backends only."""
    capacity_bytes: int | None = None
    """Servers do not report it."""
    usage_ratio: float | None = None


class InstanceUsage(Answer):
    instance_id: str
    registered: bool
    declared_capacity: bool = False
    modules: list[Module]


class AllUsage(Answer):
    instances: list[InstanceUsage]
    shared_modules: list[Module]


def instance_routes(coordinator: Coordinator, states: StateCalls) -> Sequence[BaseRouteHandler]:
    registry = coordinator.registry
    callers = Callers(coordinator.settings.tls_bind_identity)

    @get("/healthz", operation=Operation("Does the coordinator answer?", Healthy, open=True, tag="coordinator"))
    async def healthz() -> dict[str, Any]:
        return Healthy().model_dump()

    @get("/metrics", operation=Operation("Counts, for Prometheus.", media_type="text/plain", tag="coordinator"))
    async def metrics() -> Response[bytes]:
        text = await call(exposition, coordinator)
        return Response(text, headers={"content-type": TEXT})

    @get("/instances", operation=Operation("Every registered server.", Instances, tag="instances"))
    async def instances() -> dict[str, Any]:
        entries = [
            InstanceEntry(
                instance_id=each.instance_id,
                ip=each.says.ip,
                http_port=each.says.http_port,
                registration_time=each.registered_at,
                metadata=dict(each.says.metadata),
                p2p_advertised_url=each.says.p2p_advertised_url,
                mq_port=each.says.mq_port,
            )
            for each in registry.live()
        ]
        return Instances(instances=entries).model_dump()

    @post(
        "/instances",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "Register a server.", Registered, body=Register, refusals=_TAKEN, scopes=MEMBERS, tag="instances"
        ),
    )
    async def register(request: Request[Any, Any, Any]) -> dict[str, Any]:
        asked = await read_body(request, Register)
        secret = callers.secret(request, asked.instance_id)
        if why := await call(coordinator.views.refusal, asked.metadata):
            raise ProblemError(HTTPStatus.CONFLICT, f"instance '{asked.instance_id}': {why}")
        says = Registration(
            ip=asked.ip or (request.client.host if request.client else ""),
            http_port=asked.http_port,
            mq_port=asked.mq_port,
            p2p_advertised_url=asked.p2p_advertised_url,
            metadata=asked.metadata,
            incarnation=asked.incarnation,
        )
        known, made = await states.call(_register, registry, asked.instance_id, says, secret, asked.secret)
        await call(coordinator.families.heard, asked.instance_id, asked.chunk_tokens, asked.chain, asked.test_vector)
        return Registered(
            instance_id=asked.instance_id, re_registered=known, secret=made.hex() if made else None
        ).model_dump(exclude_none=True)

    @put(
        "/instances/{instance_id:str}/heartbeat",
        operation=Operation("A server lives.", Heartbeat, path=ID, refusals=UNKNOWN, scopes=MEMBERS, tag="instances"),
    )
    async def heartbeat(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = path_part(request, -2)
        await call(registry.heard, name, callers.secret(request, name))
        return Heartbeat(instance_id=name).model_dump()

    @delete(
        "/instances/{instance_id:str}",
        status_code=HTTPStatus.NO_CONTENT,
        operation=Operation("A server leaves.", path=ID, status=204, refusals=UNKNOWN, scopes=MEMBERS, tag="instances"),
    )
    async def leave(request: Request[Any, Any, Any]) -> None:
        name = path_part(request)
        await states.call(registry.leave, name, callers.secret(request, name))

    @get("/instances/usage", operation=Operation("What every server has.", AllUsage, tag="instances"))
    async def usage() -> dict[str, Any]:
        found: AllUsage = await call(_all_usage, coordinator)
        return found.model_dump()

    @get(
        "/instances/{instance_id:str}/usage",
        operation=Operation("What one server has.", InstanceUsage, path=ID, refusals=UNKNOWN, tag="instances"),
    )
    async def usage_of_one(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = path_part(request, -2)
        found: AllUsage = await call(_all_usage, coordinator)
        for each in found.instances:
            if each.instance_id == name:
                return each.model_dump()
        raise ProblemError(HTTPStatus.NOT_FOUND, str(UnknownInstanceError(f"instance '{name}' is not registered")))

    return healthz, metrics, instances, register, heartbeat, leave, usage, usage_of_one


def _register(registry: Registry, *asked: Any) -> tuple[bool, bytes | None]:
    try:
        return registry.register(*asked)
    except InstanceTakenError as error:
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None


def _all_usage(coordinator: Coordinator) -> AllUsage:
    modules: dict[str, list[Module]] = {each.instance_id: [] for each in coordinator.registry.live()}
    for location, keys in sorted(coordinator.placements.counts().items()):
        if location.instance in modules:
            tier = "l1" if location.source == L1 else "l2"
            own = Module(tier=tier, backend=location.source, shared=False, keys=keys, used_bytes=None)
            modules[location.instance].append(own)
    shared = [
        Module(tier="l2", backend=backend.name, shared=True, keys=keys, used_bytes=used)
        for backend, (keys, used) in sorted(coordinator.usage.by_backend().items())
    ]
    instances = [InstanceUsage(instance_id=name, registered=True, modules=each) for name, each in modules.items()]
    return AllUsage(instances=instances, shared_modules=shared)
