"""`/l2/quota` and `/l2/status`, under `/quota` too: what tenants may use of shared L2, and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from litestar import Request, delete, get, put
from litestar.handlers import BaseRouteHandler
from pydantic import ConfigDict, Field

from lmcache_coordinator.models import GIB, LIMIT_GB_MAX, AllSalts, QuotaAnswer, SaltStatus, gigabytes
from lmcache_coordinator.routes.requests import NO_STATE, SALT, StateCalls, salt_in_path
from lmcache_core import salt_text
from lmcache_http.models import Answer, RequestBody
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import read_body

if TYPE_CHECKING:
    from lmcache_coordinator.coordinator import Coordinator

_NO_QUOTA: Final = {404: "the salt has no quota", **NO_STATE}


class SetQuota(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"limit_gb": 10.0}]})

    limit_gb: float = Field(ge=0, le=LIMIT_GB_MAX, allow_inf_nan=False)
    tier: Literal["l2"] = "l2"


class QuotaConfig(Answer):
    default_limit_gb: float | None
    """Of salts without a quota; null: they are exempt."""


class SetConfig(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"default_limit_gb": 10.0}]})

    default_limit_gb: Annotated[float, Field(ge=0, le=LIMIT_GB_MAX, allow_inf_nan=False)] | None
    tier: Literal["l2"] = "l2"


def quota_routes(coordinator: Coordinator, states: StateCalls) -> Sequence[BaseRouteHandler]:
    quotas = coordinator.quotas

    @put(
        ["/l2/quota/{cache_salt:str}", "/quota/{cache_salt:str}"],
        operation=Operation(
            "Set a salt's quota.", QuotaAnswer, path=SALT, body=SetQuota, refusals=NO_STATE, tag="quotas"
        ),
    )
    async def set_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        salt = salt_in_path(request)
        limit_gb = (await read_body(request, SetQuota)).limit_gb
        await states.call(quotas.set, salt, round(limit_gb * GIB))
        return QuotaAnswer(cache_salt=salt_text(salt), limit_gb=limit_gb, status="ok").model_dump()

    @delete(
        ["/l2/quota/{cache_salt:str}", "/quota/{cache_salt:str}"],
        status_code=HTTPStatus.OK,
        operation=Operation("Take a salt's quota away.", QuotaAnswer, path=SALT, refusals=_NO_QUOTA, tag="quotas"),
    )
    async def delete_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = salt_text(salt := salt_in_path(request))
        if not await states.call(quotas.remove, salt):
            raise ProblemError(
                HTTPStatus.NOT_FOUND, f"cache salt '{name}' has no quota; GET /l2/status lists those that do"
            )
        return QuotaAnswer(cache_salt=name, limit_gb=0.0, status="removed").model_dump()

    @get(
        ["/l2/status", "/quota"],
        operation=Operation("Use and quota of every salt.", AllSalts, refusals=NO_STATE, tag="quotas"),
    )
    async def all_salts() -> dict[str, Any]:
        answer: AllSalts = await states.call(coordinator.all_salts)
        return answer.model_dump()

    @get(
        ["/l2/status/{cache_salt:str}", "/quota/{cache_salt:str}"],
        operation=Operation("Use and quota of one salt.", SaltStatus, path=SALT, refusals=NO_STATE, tag="quotas"),
    )
    async def one_salt(request: Request[Any, Any, Any]) -> dict[str, Any]:
        answer: SaltStatus = await states.call(coordinator.salt_status, salt_in_path(request))
        return answer.model_dump()

    @get(
        "/quota/config",
        operation=Operation("The quota of salts that have none.", QuotaConfig, refusals=NO_STATE, tag="quotas"),
    )
    async def config() -> dict[str, Any]:
        default = (await states.call(quotas.read)).default_bytes
        return QuotaConfig(default_limit_gb=None if default is None else gigabytes(default)).model_dump()

    @put(
        "/quota/config",
        operation=Operation(
            "Set the quota of salts that have none; null exempts them.",
            QuotaConfig,
            body=SetConfig,
            refusals=NO_STATE,
            tag="quotas",
        ),
    )
    async def set_config(request: Request[Any, Any, Any]) -> dict[str, Any]:
        default_gb = (await read_body(request, SetConfig)).default_limit_gb
        await states.call(quotas.set_default, None if default_gb is None else round(default_gb * GIB))
        return QuotaConfig(default_limit_gb=default_gb).model_dump()

    return set_quota, delete_quota, all_salts, one_salt, config, set_config
