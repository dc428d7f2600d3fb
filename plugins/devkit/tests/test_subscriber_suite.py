"""Core's own subscriber passes the suite.  That it finds bugs is tested by `test_mutants.py`."""

from __future__ import annotations

from lmcache_devkit.subscriber_suite import SubscriberSuite


class TestLog(SubscriberSuite):
    offer = "log"
