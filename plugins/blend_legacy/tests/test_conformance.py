"""The requirements of a request module and of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_blend_legacy.service import BlendLegacyService
from lmcache_blend_legacy.settings import BlendLegacyFlags, BlendLegacySettings
from lmcache_client.engine_key import PADDING
from lmcache_core import ConfigError
from lmcache_core.app.cli import main
from lmcache_devkit import FakeServiceContext, RequestModuleSuite, ServiceSuite


class TestBlendLegacy(RequestModuleSuite):
    offer = "blend_legacy"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"special_tokens": [7, 8]}


class TestBlendLegacyService(ServiceSuite):
    offer = "blend_legacy"


def test_the_server_does_not_start_where_no_rows_could_be_copied() -> None:
    given = {"engine_type": ("blend_legacy",), "supported_transfer_mode": "engine_driven"}
    with pytest.raises(
        ConfigError, match=r"--engine-type blend_legacy .* --supported-transfer-mode engine_driven .*; use auto"
    ):
        BlendLegacyService(None, FakeServiceContext(settings=given))
    for other in ({"engine_type": ("blend",)}, {"supported_transfer_mode": "auto"}):
        BlendLegacyService(None, FakeServiceContext(settings=given | other))


def test_plugins_show_tells_what_it_offers_and_how_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "plugin:blend_legacy"]) == 0
    shown = capsys.readouterr().out
    assert "distribution  lmcache-blend-legacy " in shown
    assert "request_module:blend_legacy  Stores and finds documents of a prompt" in shown
    assert "  --blend-special-tokens  " in shown


def test_a_separator_is_token_ids() -> None:
    for text, tokens in (("674, 674", (674, 674)), (["1,2", "3"], (1, 2, 3)), ([7, 8], (7, 8)), ("", ())):
        assert BlendLegacyFlags.model_validate({"blend_special_tokens": text}).blend_special_tokens == tokens
    for wrong in ("-1", str(PADDING), "1.5", ",".join(["1"] * 65), {"a": 1}):
        with pytest.raises(ValidationError):
            BlendLegacyFlags.model_validate({"blend_special_tokens": wrong})
    with pytest.raises(ValidationError, match="from 0 to"):
        BlendLegacySettings.model_validate({"special_tokens": [-1]})
