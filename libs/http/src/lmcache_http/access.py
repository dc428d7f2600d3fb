"""Who is let in: the token of a request, against what its route does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from lmcache_http.openapi import Operation
from lmcache_http.tokens import Scope, Tokens

_SCOPE: Final = "lmcache_scope"
CLIENT_NAMES: Final = "lmcache_client_names"
"""In the state of a request: the names in its client's certificate."""
OPEN: Final = "lmcache_open"
"""In the state of a request: is its route answered without a token, too?"""
Connection = ASGIConnection[Any, Any, Any, Any]


def token_guard(tokens: Tokens | None) -> Guard:
    """Before anything of a request is read but its headers.  Without tokens every request is admitted."""

    def check(connection: Connection, handler: BaseRouteHandler) -> None:
        scope = Scope.FULL if tokens is None else tokens.scope_of(connection.headers.get("authorization"))
        is_open = operation_of(handler).open
        connection.state[_SCOPE], connection.state[OPEN] = scope, is_open
        if scope is Scope.FULL or is_open:
            return
        if scope is None:
            raise NotAuthorizedException("a Bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
        if scope not in scopes_of(method_of(connection), operation_of(handler)):
            raise PermissionDeniedException(f"this token has the scope '{scope}', which is not for this request")

    return check


def scopes_of(method: str, operation: Operation) -> Sequence[Scope]:
    """Those beside `full` that it may be asked with."""
    if operation.scopes is not None:
        return operation.scopes
    return (Scope.READ,) if method == "GET" else ()


def names_in(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common names and the DNS names of a verified certificate, as `ssl.SSLSocket.getpeercert` has them."""
    common = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return frozenset([*common, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")])


def client_names(connection: Connection) -> frozenset[str]:
    """In the certificate that the client brought; none without one."""
    names: frozenset[str] = connection.scope.get("state", {}).get(CLIENT_NAMES, frozenset())
    return names


def is_let_in(connection: Connection) -> bool:
    """Did it bring a token, or need none?"""
    return connection.state.get(_SCOPE) is not None


def method_of(connection: Connection) -> str:
    """GET, POST and so on."""
    scope: Any = connection.scope
    return str(scope["method"])


def operation_of(handler: BaseRouteHandler) -> Operation:
    operation: Operation = handler.opt["operation"]
    return operation
