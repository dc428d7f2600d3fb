"""What `lmcache doctor` says of the store that an adapter is to use."""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_core import CheckResult, ProtocolError
from lmcache_l2_lm.config import LmSettings
from lmcache_l2_lm.store_calls import open_line

REMEDY = "start it (lmcache store-server HOST PORT), or correct host and port"


def check(settings: LmSettings) -> Iterator[CheckResult]:
    """Asks the store how it is."""
    where = f"lm://{settings.host}:{settings.port}"
    try:
        open_line(settings, settings.connect_timeout_seconds).close()
    except (OSError, ProtocolError) as error:
        yield CheckResult("fail", f"{where}: {error}", REMEDY)
    else:
        yield CheckResult("ok", f"{where} answers")
