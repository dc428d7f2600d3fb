"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_core import PluginSettings
from lmcache_serde.aesgcm import AesGcmSettings
from lmcache_serde.chain.opening import ChainSettings
from lmcache_serde.integers import Int4Settings, Int8Settings
from lmcache_serde.plugin import lmcache_serdes
from lmcache_serde.zstd import ZstdSettings
from plugins.serde.tests.round_trip import MASTER

VALID: dict[type[PluginSettings], dict[str, Any]] = {
    ChainSettings: {}, ZstdSettings: {}, Int8Settings: {}, Int4Settings: {}, AesGcmSettings: {"keys": [{"value": MASTER}]},
}  # fmt: skip


def test_the_entry_point_leads_to_offers_whose_parts_exist() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="serde")
    assert entry.load().lmcache_serdes is lmcache_serdes
    offers = lmcache_serdes()
    assert [offer.name for offer in offers] == ["chain", "aesgcm", "fp8", "int4", "int8", "zstd"]
    for offer in offers:
        assert callable(resolve(offer.open))
    assert {resolve(offer.settings) for offer in offers if offer.settings} == set(VALID)


def test_listing_imports_neither_numpy_nor_a_library_of_ours() -> None:
    code = (
        "import sys, lmcache_serde.plugin as p; p.lmcache_serdes(); "
        "print(sorted({'pydantic', 'numpy', 'zstandard', 'cryptography', 'lmcache_serde.zstd'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", VALID, ids=lambda model: model.__name__)
def test_what_is_needed_suffices_and_unknown_fields_are_refused(model: type[PluginSettings]) -> None:
    model.model_validate(VALID[model])
    with pytest.raises(ValidationError, match="colour"):
        model.model_validate({**VALID[model], "colour": 1})


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        (ZstdSettings, "level", -1), (ZstdSettings, "level", 20), (ZstdSettings, "level", "high"),
        (ZstdSettings, "element_bytes", 3), (ZstdSettings, "element_bytes", 0),
        (Int8Settings, "group_size", 1), (Int8Settings, "group_size", 65_536), (Int4Settings, "group_size", 0),
        (AesGcmSettings, "keys", []), (AesGcmSettings, "keys", [{"value": MASTER}] * 17),
        (AesGcmSettings, "keys", [{}]), (AesGcmSettings, "keys", [{"env": "A", "file": "/b"}]),
        (AesGcmSettings, "keys", [{"env": ""}]), (AesGcmSettings, "keys", [{"vault": "x"}]),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(model: type[PluginSettings], field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        model.model_validate({**VALID[model], field: value})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for model in VALID for field in model.model_fields.values())


def resolve(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
