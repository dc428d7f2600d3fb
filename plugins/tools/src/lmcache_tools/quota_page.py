"""What the commands of `lmcache quota` share: how a salt is given, and how its limit is shown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from urllib.parse import quote

from lmcache_client.errors import ConfigError
from lmcache_core.model.names import EMPTY_SALT_WORD, parse_salt, salt_text
from lmcache_http.admin_api.quotas import SaltUse
from lmcache_tools.page import Table


def add_salt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("salt", metavar="SALT", help=f"cache salt; {EMPTY_SALT_WORD} is the empty one")


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
