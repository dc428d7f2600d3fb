"""The requirements of a request module."""

from __future__ import annotations

from lmcache_devkit import RequestModuleSuite


class TestKVEvents(RequestModuleSuite):
    offer = "kv_events"
