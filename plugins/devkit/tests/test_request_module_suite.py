"""Core's own request modules pass the suite.  That it finds bugs is tested by `test_mutants.py`."""

from __future__ import annotations

from lmcache_devkit.request_module_suite import RequestModuleSuite


class TestManagement(RequestModuleSuite):
    offer = "management"


class TestLookup(RequestModuleSuite):
    offer = "lookup"


class TestEngineDriven(RequestModuleSuite):
    offer = "engine_driven"
