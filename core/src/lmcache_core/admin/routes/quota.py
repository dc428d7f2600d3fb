"""What cache salts may use of L1."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypedDict
from urllib.parse import unquote

from litestar import Request, delete, get, put
from litestar.concurrency import sync_to_thread
from litestar.handlers import BaseRouteHandler

from lmcache_core.admin.body import read_body
from lmcache_core.admin.ports import QuotaPort
from lmcache_core.admin.problem import ProblemError
from lmcache_core.admin.schemas import (
    GIB,
    QuotaWasDeleted,
    QuotaWasSet,
    SaltQuota,
    SaltQuotas,
    SaltUse,
    SetQuota,
    gigabytes,
)
from lmcache_core.controllers.quota import Quota, QuotaRefusedError
from lmcache_core.model.cache_salt import parse_salt, salt_text


def quota_routes(quotas: QuotaPort) -> Sequence[BaseRouteHandler]:
    """Salts are the last part of the path; the empty one is `_default` there and in the answers.

    The port is called on threads by hand: litestar's own `sync_to_thread=True` answers with a coroutine where one path
    has several methods."""

    @get("/quota")
    async def list_quotas() -> dict[str, Any]:
        everything = await sync_to_thread(quotas.everything)
        users = {salt_text(quota.salt): SaltUse(**_use(quota)) for quota in everything}
        return SaltQuotas(users=users, default_limit_gb=gigabytes(quotas.default_bytes)).model_dump()

    @get("/quota/{cache_salt:str}")
    async def get_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        quota = await sync_to_thread(quotas.get, _salt(request))
        return SaltQuota(cache_salt=salt_text(quota.salt), exists=quota.is_own, **_use(quota)).model_dump()

    @put("/quota/{cache_salt:str}")
    async def set_quota(request: Request[Any, Any, Any]) -> dict[str, Any]:
        salt = _salt(request)
        limit_gb = (await read_body(request, SetQuota)).limit_gb
        try:
            await sync_to_thread(quotas.set, salt, round(limit_gb * GIB))
        except QuotaRefusedError as error:
            raise ProblemError(HTTPStatus.CONFLICT, str(error)) from None
        return QuotaWasSet(cache_salt=salt_text(salt), limit_gb=limit_gb).model_dump()

    @delete("/quota/{cache_salt:str}", status_code=HTTPStatus.OK)
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
    """Decoded here, strictly: routing works on a path in which bytes that are no UTF-8 are replaced already."""
    part = bytes(request.scope["raw_path"]).rpartition(b"/")[2].decode("latin-1")
    try:
        return parse_salt(unquote(part, errors="strict"))
    except UnicodeDecodeError:
        wrong = "the path is not percent-encoded UTF-8"
    except ValueError as error:
        wrong = str(error)
    raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"cache_salt: {wrong}")
