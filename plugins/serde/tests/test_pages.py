"""The commands in the README and on the page are valid, and the page says what is so."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lmcache_serde.chain.opening import ChainSettings
from lmcache_serde.plugin import lmcache_serdes

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", HERE.parents[1] / "docs" / "operate" / "compression-and-encryption.md"]
OFFERS = {offer.name: offer for offer in lmcache_serdes()}


def adapters(page: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r"--l2-adapter '(\{.*?\})'", page.read_text(), re.DOTALL)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_names_serdes_with_settings_that_are_valid(page: Path) -> None:
    given = adapters(page)
    assert given
    for adapter in given:
        serdes = adapter["serde"] if isinstance(adapter["serde"], list) else [adapter["serde"]]
        for serde in serdes:
            values = {} if isinstance(serde, str) else dict(serde)
            offer = OFFERS[serde if isinstance(serde, str) else values.pop("type")]
            if offer.settings:
                module, _, name = offer.settings.partition(":")
                getattr(import_module(module), name).model_validate(values)
            else:
                assert not values


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_field_is_described_with_its_default(page: Path) -> None:
    """Those of the chain: below."""
    text = page.read_text()
    for offer in (offer for offer in OFFERS.values() if not offer.wraps):
        if offer.settings:
            module, _, name = offer.settings.partition(":")
            for field, info in getattr(import_module(module), name).model_fields.items():
                rows = [line for line in text.splitlines() if line.startswith("|") and f"`{field}`" in line]
                assert rows, f"{page.name}: {field}"
                default = "required" if info.is_required() else str(info.default)
                assert info.default is None or any(default in row for row in rows), f"{page.name}: {field} {default}"


def test_the_fields_beside_the_serdes_are_described_where_adapters_are() -> None:
    text = (HERE.parents[1] / "docs" / "operate" / "l2.md").read_text()
    assert [name for name in ChainSettings.model_fields if f"| `{name}` |" not in text] == []
