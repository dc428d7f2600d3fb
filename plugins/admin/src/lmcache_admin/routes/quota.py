"""What cache salts may use of L1."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, TypedDict

from litestar import Request, delete, get, put
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core import Quota, QuotaControl, QuotaRefusedError, parse_salt, salt_text
from lmcache_http.admin_api.quotas import (
    GIB,
    QuotaWasDeleted,
    QuotaWasSet,
    SaltQuota,
    SaltQuotas,
    SaltUse,
    SetQuota,
    gigabytes,
)
from lmcache_http.openapi import Operation
from lmcache_http.problem import ProblemError
from lmcache_http.reading import path_part, read_body

_SALT: Final = {"cache_salt": "The cache salt; `_default` is the empty one."}


def quota_routes(quotas: QuotaControl) -> Sequence[BaseRouteHandler]:
    """Salts are the last part of the path; the empty one is `_default` there and in the answers.

    The port is called on threads by hand: litestar's own `sync_to_thread=True` answers with a coroutine where one path
    has several methods."""

    @get("/quota", operation=Operation("Limits and use of every cache salt.", SaltQuotas, tag="quotas"))
    async def list_quotas() -> dict[str, Any]:
        everything = await sync_to_thread(quotas.everything)
        users = {salt_text(quota.salt): SaltUse(**_use(quota)) for quota in everything}
        return SaltQuotas(users=users, default_limit_gb=gigabytes(quotas.default_bytes)).model_dump()

    @get(
        "/quota/{cache_salt:str}",
        operation=Operation("Limit and use of one cache salt.", SaltQuota, path=_SALT, tag="quotas"),
    )
    async def get_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        quota = await sync_to_thread(quotas.get, _salt(request))
        return SaltQuota(cache_salt=salt_text(quota.salt), exists=quota.is_own, **_use(quota)).model_dump()

    @put(
        "/quota/{cache_salt:str}",
        operation=Operation(
            "Limit a cache salt, from now on.",
            QuotaWasSet,
            path=_SALT,
            body=SetQuota,
            refusals={409: "the eviction policy keeps no quotas"},
            tag="quotas",
        ),
    )
    async def set_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        salt = _salt(request)
        limit_gb = (await read_body(request, SetQuota)).limit_gb
        try:
            await sync_to_thread(quotas.set, salt, round(limit_gb * GIB))
        except QuotaRefusedError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
        return QuotaWasSet(cache_salt=salt_text(salt), limit_gb=limit_gb).model_dump()

    @delete(
        "/quota/{cache_salt:str}",
        status_code=HTTPStatus.OK,
        operation=Operation(
            "Let a cache salt have the default limit again.",
            QuotaWasDeleted,
            path=_SALT,
            refusals={404: "the salt has no quota of its own"},
            tag="quotas",
        ),
    )
    async def delete_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        name = salt_text(salt := _salt(request))
        if not await sync_to_thread(quotas.delete, salt):
            raise ProblemError(
                HTTPStatus.NOT_FOUND, f"cache salt '{name}' has no quota of its own; GET /quota lists those that do"
            )
        return QuotaWasDeleted(cache_salt=name).model_dump()

    return list_quotas, get_quota, set_quota, delete_quota


class _Use(TypedDict):
    limit_gb: float | None
    current_usage_gb: float
    limit_bytes: int | None
    current_usage_bytes: int


def _use(quota: Quota) -> _Use:
    return {
        "limit_gb": gigabytes(quota.limit_bytes),
        "current_usage_gb": gigabytes(quota.used_bytes) or 0.0,
        "limit_bytes": quota.limit_bytes,
        "current_usage_bytes": quota.used_bytes,
    }


def _salt(request: Request[Any, Any, Any]) -> str:
    try:
        return parse_salt(path_part(request))
    except ValueError as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"cache_salt: {error}") from None
