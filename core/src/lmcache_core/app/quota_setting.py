"""Limits of cache salts as the configuration gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lmcache_core.model.names import parse_salt

GIB: Final = 2**30
LIMIT_GB_MAX: Final = 2**30
"""An EiB."""
QUOTA_EXAMPLE: Final = '{"tenant-a": 2.5}'


def check_quotas(quotas: Iterable[Mapping[Any, Any]]) -> None:
    """Raises ValueError that names the salt: one that is none, one that is given twice, or a limit that is no size."""
    seen = set()
    for salt, gigabytes in ((salt, size) for sizes in quotas for salt, size in sizes.items()):
        try:
            parse_salt(str(salt))
        except ValueError as error:
            raise ValueError(f"salt {str(salt)[:40]!r}: {error}") from None
        if isinstance(gigabytes, bool) or not isinstance(gigabytes, int | float) or not 0 <= gigabytes <= LIMIT_GB_MAX:
            raise ValueError(f"salt '{salt}': {str(gigabytes)[:40]!r} is no number of GiB from 0 to {LIMIT_GB_MAX}")
        if salt in seen:
            raise ValueError(f"salt '{salt}' is given twice")
        seen.add(salt)


def quota_bytes(quotas: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Limits in bytes by salt, of what `check_quotas` found right."""
    return {parse_salt(salt): round(gigabytes * GIB) for sizes in quotas for salt, gigabytes in sizes.items()}
