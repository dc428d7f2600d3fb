"""The implementations that must agree: both where lmcache-native is installed."""

from __future__ import annotations

from lmcache_kv_layout import PageCopier

IMPLEMENTATIONS = ["off", "on"] if PageCopier().native else ["off"]
