"""What the commands of `lmcache quota` share: how a salt is given, and how its limit is shown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_core.model.names import EMPTY_SALT_WORD, parse_salt, salt_text
from lmcache_http.admin_api.quotas import GIB, SaltQuota, SaltUse
from lmcache_tools.admin_client import AdminClient
from lmcache_tools.page import Table


def add_salt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("salt", metavar="SALT", help=f"cache salt; {EMPTY_SALT_WORD} is the empty one")


def is_coordinator(client: AdminClient) -> bool:
    """Its quotas are of shared L2, and a server's of its L1.  Servers do not know the route."""
    return client.ask("GET", "/healthz", also=(404,)).get("status") == "healthy"


def where(of_fleet: bool) -> str:
    return "shared L2" if of_fleet else "L1"


def coordinator_quota(answer: dict[str, Any]) -> SaltQuota:
    """Of `GET /l2/status/{cache_salt}`, as servers say it."""
    limit, used = answer["quota_limit_gb"], answer["usage_gb"]
    return SaltQuota(
        cache_salt=answer["cache_salt"],
        exists=answer["quota_exists"],
        limit_gb=limit,
        current_usage_gb=used,
        limit_bytes=None if limit is None else round(limit * GIB),
        current_usage_bytes=round(used * GIB),
    )


def coordinator_quotas(answer: dict[str, Any]) -> Sequence[tuple[str, SaltUse]]:
    """Of `GET /l2/status`.  Raises LMCacheError."""
    try:
        return [(each["cache_salt"], coordinator_quota(each)) for each in answer["by_cache_salt"]]
    except (KeyError, TypeError, ValueError):
        raise LMCacheError("the answer is not one of a coordinator") from None


def salt_path(text: str) -> str:
    """The route of a salt's quota, percent-encoded.  Raises ConfigError for an invalid salt."""
    try:
        return f"/quota/{quote(salt_text(parse_salt(text)), safe='')}"
    except ValueError as error:
        raise ConfigError(f"SALT {text[:40]!r}: {error}") from None


def quota_table(uses: Sequence[tuple[str, SaltUse]]) -> Table:
    rows = [
        (salt, gibibytes(use.limit_gb), gibibytes(use.current_usage_gb), str(use.current_usage_bytes))
        for salt, use in uses
    ]
    return Table(("SALT", "LIMIT GIB", "USED GIB", "USED BYTES"), rows)


def gibibytes(value: float | None) -> str:
    """A size in GiB, exact to a few KiB; "-" for none."""
    return "-" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
