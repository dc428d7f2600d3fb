"""Only the given address gets the token: a redirect is an error."""

from __future__ import annotations

from typing import Any
from urllib.request import HTTPRedirectHandler


class NoRedirects(HTTPRedirectHandler):
    """For `urllib.request.build_opener`; a redirect then raises HTTPError."""

    def redirect_request(self, *given: Any) -> None:
        return None
