"""Errors as application/problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

logger = logging.getLogger(__name__)


class ProblemError(HTTPException):
    """What the caller can fix.  `detail` names the field, the limit and the remedy."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(status_code=status, detail=detail)


def problem(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """The answer to a request that failed.  What went wrong inside is for the log, not for the caller."""
    if isinstance(error, HTTPException):
        code, detail, headers = error.status_code, error.detail, error.headers
    else:
        code, detail, headers = HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why", None
        logger.error("admin request failed method=%s path=%r", request.method, request.scope["path"], exc_info=error)
    if headers and "allow" in headers:
        headers = {**headers, "allow": ", ".join(sorted(set(headers["allow"].split(", ")) - {"OPTIONS"}))}
    return Response(
        {"type": "about:blank", "title": HTTPStatus(code).phrase, "status": code, "detail": detail},
        status_code=code,
        headers=headers,
        media_type="application/problem+json",
    )
