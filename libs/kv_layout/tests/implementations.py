"""The implementations that must agree: both where lmcache-native is installed."""

from __future__ import annotations

from lmcache_kv_layout import PageCopier
from lmcache_kv_layout.native_rows import native_rows

IMPLEMENTATIONS = ["off", "on"] if PageCopier().native else ["off"]
OF_ROWS = ["off", "on"] if native_rows(required=False) else ["off"]
