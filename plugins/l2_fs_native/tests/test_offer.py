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
from lmcache_l2_fs_native.adapter import FsNativeAdapter
from lmcache_l2_fs_native.config import FsNativeSettings
from lmcache_l2_fs_native.plugin import lmcache_l2_adapters


def test_the_entry_point_leads_to_one_offer_whose_parts_exist_and_agree() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="fs_native")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert offer.name == "fs_native"
    assert offer.settings is not None
    assert resolve(offer.settings) is FsNativeSettings
    assert callable(resolve(offer.open))
    assert offer.capabilities == FsNativeAdapter.capabilities
    assert issubclass(FsNativeAdapter, L2Adapter)


def test_listing_imports_no_settings_no_adapter_and_no_engine() -> None:
    code = (
        "import sys, lmcache_l2_fs_native.plugin as p; p.lmcache_l2_adapters(); "
        "heavy = {'pydantic', 'lmcache_native.io', 'lmcache_object_files', 'lmcache_l2_fs_native.adapter'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_path_is_all_it_needs() -> None:
    settings = FsNativeSettings.model_validate({"base_path": "/data"})
    assert settings.model_dump() == {
        "base_path": Path("/data"), "relative_tmp_dir": ".tmp", "max_capacity_gb": 0.0, "persist_enabled": True,
        "fsync": False, "use_odirect": False, "read_ahead_size": None, "num_workers": 4, "io_engine": "auto",
        "queue_depth": 64, "in_flight_max_mb": 1024,
    }  # fmt: skip


def test_no_directory_for_temporaries_means_the_usual_one() -> None:
    settings = FsNativeSettings.model_validate({"base_path": "/data", "relative_tmp_dir": ""})
    assert settings.relative_tmp_dir == ".tmp"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_path", ""), ("base_path", 5),
        ("relative_tmp_dir", "/tmp"), ("relative_tmp_dir", "a/../../b"), ("relative_tmp_dir", ".damaged"),
        ("read_ahead_size", 0), ("max_capacity_gb", -0.1), ("max_capacity_gb", float("nan")),
        ("num_workers", 0), ("num_workers", 1000), ("fsync", "perhaps"), ("base_dir", "/data"),
        ("io_engine", "posix"), ("io_engine", ""), ("queue_depth", 0), ("queue_depth", 100_000),
        ("in_flight_max_mb", 0), ("persist_enabled", "never"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        FsNativeSettings.model_validate({"base_path": "/data", field: value})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in FsNativeSettings.model_fields.values())


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
