"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_core import L2Adapter
from lmcache_l2_fs.adapter import FsAdapter
from lmcache_l2_fs.config import FsSettings
from lmcache_l2_fs.plugin import lmcache_l2_adapters


def test_the_entry_point_leads_to_one_offer_whose_parts_exist_and_agree() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="fs")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert offer.name == "fs"
    assert offer.settings is not None
    assert resolve(offer.settings) is FsSettings
    assert callable(resolve(offer.open))
    assert offer.capabilities == FsAdapter.capabilities
    assert issubclass(FsAdapter, L2Adapter)


def test_listing_imports_no_settings_and_no_adapter() -> None:
    code = (
        "import sys, lmcache_l2_fs.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'lmcache_l2_fs.adapter', 'lmcache_l2_fs.config'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_path_is_all_it_needs() -> None:
    settings = FsSettings.model_validate({"base_path": "/data"})
    assert settings.model_dump() == {
        "base_path": Path("/data"), "relative_tmp_dir": ".tmp", "read_ahead_size": None, "use_odirect": False,
        "max_capacity_gb": 0.0, "fsync": False, "persist_enabled": True, "num_workers": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_path", ""), ("base_path", "  "), ("base_path", 5),
        ("relative_tmp_dir", "/tmp"), ("relative_tmp_dir", "../tmp"), ("relative_tmp_dir", "a/../../b"),
        ("relative_tmp_dir", ""), ("relative_tmp_dir", "."), ("relative_tmp_dir", ".damaged"),
        ("relative_tmp_dir", ".lock/x"), ("relative_tmp_dir", "a\0b"),
        ("read_ahead_size", 0), ("read_ahead_size", -1), ("max_capacity_gb", -0.1), ("max_capacity_gb", float("nan")),
        ("num_workers", 0), ("num_workers", 1000), ("fsync", "perhaps"), ("base_dir", "/data"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        FsSettings.model_validate({"base_path": "/data", field: value})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in FsSettings.model_fields.values())


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
