"""The requirements of an eviction of L2."""

from __future__ import annotations

from lmcache_devkit import L2EvictionSuite


class TestWatermark(L2EvictionSuite):
    offer = "watermark"
