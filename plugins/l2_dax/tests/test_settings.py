"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_core import Capability
from lmcache_l2_dax.config import DaxSettings
from lmcache_l2_dax.plugin import lmcache_l2_adapters

LEAST = {"device_path": "/dev/dax1.0", "max_dax_size_gb": 100, "slot_bytes": 268435456}


def test_the_entry_point_leads_to_one_offer_whose_parts_exist() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="dax")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert (offer.name, offer.optional_capabilities) == ("dax", Capability.DURABLE)
    assert offer.settings is not None
    assert resolve(offer.settings) is DaxSettings
    assert callable(resolve(offer.open))


def test_listing_imports_no_settings_and_no_adapter() -> None:
    code = (
        "import sys, lmcache_l2_dax.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'lmcache_native', 'lmcache_l2_dax.adapter', 'lmcache_l2_dax.config'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_device_its_size_and_a_slot_are_all_it_needs() -> None:
    assert DaxSettings.model_validate(LEAST).model_dump() == {
        "device_path": Path("/dev/dax1.0"), "max_dax_size_gb": 100.0, "slot_bytes": 268435456, "num_store_workers": 1,
        "num_lookup_workers": 1, "num_load_workers": min(4, os.cpu_count() or 1), "persist_enabled": False,
        "overwrite_device": False,
    }  # fmt: skip


def test_several_devices_are_a_list() -> None:
    settings = DaxSettings.model_validate(
        {**LEAST, "device_path": ["/dev/dax0.0", "/dev/dax1.0"], "max_dax_size_gb": 0.5}
    )
    assert settings.device_paths == (Path("/dev/dax0.0"), Path("/dev/dax1.0"))
    assert DaxSettings.model_validate(LEAST).device_paths == (Path("/dev/dax1.0"),)
    assert settings.device_bytes == 2**29


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_path", ""), ("device_path", []), ("device_path", ["/dev/dax0.0", " "]), ("device_path", 5),
        ("device_path", ["/dev/dax0.0", "/dev/dax0.0"]),
        ("max_dax_size_gb", 0), ("max_dax_size_gb", -1), ("max_dax_size_gb", float("inf")),
        ("slot_bytes", 0), ("slot_bytes", 4096), ("slot_bytes", 100_000),
        ("num_store_workers", 0), ("num_lookup_workers", 0), ("num_load_workers", 257),
        ("persist_enabled", "perhaps"), ("device", "/dev/dax1.0"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        DaxSettings.model_validate({**LEAST, field: value})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in DaxSettings.model_fields.values())


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
