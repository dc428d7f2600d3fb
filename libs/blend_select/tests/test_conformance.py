from __future__ import annotations

from lmcache_devkit import SelectorSuite


class TestNone(SelectorSuite):
    selector = "none"


class TestFull(SelectorSuite):
    selector = "full"


class TestLegoLink(SelectorSuite):
    selector = "lego_link"


class TestBlockStart(SelectorSuite):
    selector = "block_start"


class TestCacheBlend(SelectorSuite):
    selector = "cacheblend"


class TestQuestion(SelectorSuite):
    selector = "question"
