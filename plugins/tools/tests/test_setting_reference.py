"""docs/reference/configuration.md says what the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_tools.setting_reference import main, server_reference

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def test_the_document_is_what_the_generator_writes() -> None:
    remedy = "run: python -m lmcache_tools.setting_reference > docs/reference/configuration.md"
    assert DOCUMENT.read_text() == server_reference(load_plugins()), remedy


def test_every_setting_is_in_it() -> None:
    text = server_reference(load_plugins(["builtin"]))
    assert [name for name in ServerSettings.model_fields if f"`LMCACHE_{name.upper()}`" not in text] == []
    assert "* `max_size_gb` (number, > 0, default `1`): " in text


def test_one_offer_alone() -> None:
    assert main(["memory"]).startswith("## L2 adapter `memory`")
    assert "It takes no settings." in main(["LRU"])
    with pytest.raises(ConfigError, match="nothing that is installed offers 'absent'"):
        main(["absent"])
