"""The proxy's HTTP API: the two routes of engines that are split in two, and its health."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response, get, post
from litestar.types import ASGIApp
from pydantic import ConfigDict

from lmcache_http.application import http_app
from lmcache_http.models import Answer, RequestBody
from lmcache_http.openapi import ApiAbout, Operation
from lmcache_http.problem import ProblemError
from lmcache_pd.relay import Proxy, Relay

BODY_BYTES_MAX: Final = 16 << 20
ABOUT: Final = ApiAbout("lmcache pd-proxy", "1.0", "A proxy in front of engines that prefill and engines that decode.")


class EngineRequest(RequestBody):
    """As an engine takes it; the proxy passes on what it does not know."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None


class EngineHealth(Answer):
    url: str
    is_up: bool
    in_flight: int
    requests: int
    failures: int


class ProxyHealth(Answer):
    prefill: list[EngineHealth]
    decode: list[EngineHealth]


def proxy_app(proxy: Proxy) -> ASGIApp:
    @get(
        "/health",
        operation=Operation(
            "Which engines answer, and what each was asked.", ProxyHealth, also={503: ProxyHealth}, open=True
        ),
    )
    async def health() -> Response[dict[str, Any]]:
        about = {
            "prefill": [dict(each.about()) for each in proxy.prefill.all],
            "decode": [dict(each.about()) for each in proxy.decode.all],
        }
        is_up = any(each.is_up for each in proxy.decode.all)
        return Response(about, status_code=HTTPStatus.OK if is_up else HTTPStatus.SERVICE_UNAVAILABLE)

    @post(
        ["/v1/completions", "/v1/chat/completions"],
        status_code=HTTPStatus.OK,
        request_max_body_size=BODY_BYTES_MAX,
        operation=Operation(
            "The answer of a decode engine, streamed where that is asked for.",
            body=EngineRequest,
            refusals={502: "no decode engine answered"},
        ),
    )
    async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
        body = _decoded(await request.body())
        path = str(request.scope["path"])
        return Relay(proxy, path, body, request.headers.get("authorization"))

    return http_app(ABOUT, [health, completions], None)


def _decoded(data: bytes) -> dict[str, Any]:
    """Raises ProblemError for what is not an object, and for what could not be passed on."""
    try:
        body = msgspec.json.decode(data)
        msgspec.json.encode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    except (msgspec.MsgspecError, OverflowError, ValueError) as error:
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, f"the body cannot be passed on: {error}") from None
    if not isinstance(body, dict):
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "the body is not a JSON object")
    return body
