"""The admin API of a registered server: what it lists and deletes at a coordinator's request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from lmcache_client.errors import ConfigError, ProtocolError
from lmcache_coordinator.registry import Instance
from lmcache_fleet.http_connection import Answer, HttpConnection, RefusedError, token_in

OBJECTS: Final = "/cache/objects"
DELETE_PATHS: Final = (OBJECTS, "/l2")
"""The second is what servers have that do not know the first."""
LIST_PATHS: Final = (OBJECTS, "/l2/keys")
_UNKNOWN: Final = (404, 405)


class Listed(msgspec.Struct, frozen=True):
    """An object."""

    key: str | dict[str, str | int]
    """Whole, in hexadecimal digits, as servers of this project have it; or field by field."""
    payload_bytes: int | None = None
    stored_bytes: int | None = None
    size_bytes: int | None = None
    """Where the key is field by field."""


class ListedPage(msgspec.Struct, frozen=True):
    entries: list[Listed]
    next_page_token: Annotated[str, Meta(max_length=4096)] | None = None


class ServerApi:
    """Of one server, at the address that it has registered.  One thread."""

    def __init__(self, instance: Instance, token_file: str | None) -> None:
        """The token is read for each request.  Raises ConfigError for a server without an admin port."""
        if not instance.says.http_port:
            raise ConfigError(f"instance '{instance.instance_id}' has registered no port of an admin API")
        self._connection = HttpConnection(instance.says.admin_url, lambda: token_in(token_file, "--member-token-file"))

    def delete(self, keys: Sequence[Any]) -> None:
        """Objects of shared L2, by names that are JSON values.  Raises UnreachableError, RefusedError, ConfigError."""
        self._ask("DELETE", DELETE_PATHS, "", json.dumps({"keys": keys, "tier": "l2"}).encode())

    def page(self, tier: Literal["l1", "l2"], size: int, token: str | None) -> ListedPage:
        """`token`: of the page before.  Raises UnreachableError, RefusedError, ProtocolError, ConfigError."""
        query = {"tier": tier, "page_size": size, **({"page_token": token} if token else {})}
        answer = self._ask("GET", LIST_PATHS if tier == "l2" else LIST_PATHS[:1], f"?{urlencode(query)}")
        try:
            page = msgspec.json.decode(answer.body, type=ListedPage)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"not a page of a listing: {error}") from None
        if token and page.next_page_token == token:
            raise ProtocolError("the server gives the same page twice")
        return page

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, paths: Sequence[str], query: str, body: bytes | None = None) -> Answer:
        """At the first path that the server knows."""
        headers = {"Content-Type": "application/json"} if body else None
        for path in paths[:-1]:
            try:
                return self._connection.ask(method, path + query, body, headers)
            except RefusedError as error:
                if error.status not in _UNKNOWN:
                    raise
        return self._connection.ask(method, paths[-1] + query, body, headers)
