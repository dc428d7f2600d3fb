"""The requirements of a request module and of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lmcache_core.app.cli import main
from lmcache_devkit import CoordinatorViewSuite, RequestModuleSuite, ServiceSuite


class TestBlend(RequestModuleSuite):
    offer = "blend"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"index_chunks": 4096}


class TestBlendService(ServiceSuite):
    offer = "blend"


class TestBlendView(CoordinatorViewSuite):
    offer = "blend"


def test_plugins_show_tells_what_it_offers_and_how_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "plugin:blend"]) == 0
    shown = capsys.readouterr().out
    assert "distribution  lmcache-blend " in shown
    assert "request_module:blend  Finds stored chunks of a prompt wherever they are in it" in shown
    for flag in ("--blend-index-chunks", "--blend-probe-stride"):
        assert f"  {flag}  " in shown
