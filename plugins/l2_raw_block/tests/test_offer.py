"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_l2_raw_block.adapter import RawBlockAdapter
from lmcache_l2_raw_block.config import RawBlockSettings
from lmcache_l2_raw_block.plugin import lmcache_l2_adapters

LEAST = {"device_path": "/dev/nvme0n1", "slot_bytes": 2**20}


def test_the_entry_point_leads_to_one_offer_whose_parts_exist_and_agree() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="raw_block")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    (offer,) = lmcache_l2_adapters()
    assert offer.settings is not None
    assert resolve(offer.settings) is RawBlockSettings
    assert callable(resolve(offer.open))
    assert offer.capabilities == RawBlockAdapter.capabilities


def test_listing_imports_no_settings_and_no_engine() -> None:
    code = (
        "import sys, lmcache_l2_raw_block.plugin as p; p.lmcache_l2_adapters(); "
        "print(sorted({'pydantic', 'lmcache_native', 'lmcache_object_slots'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "example",
    [
        {
            "block_align": 4096, "header_bytes": 4096, "meta_total_bytes": 268435456, "use_odirect": True,
            "num_store_workers": 2, "num_lookup_workers": 1, "num_load_workers": 4,
        },
        {"io_engine": "io_uring", "iouring_queue_depth": 256, "use_odirect": True},
        {"load_checkpoint_on_init": False},
        {"meta_magic": 77, "meta_version": 3, "persist_enabled": True},
    ],
)  # fmt: skip
def test_what_operators_write_is_taken(example: dict[str, Any]) -> None:
    RawBlockSettings.model_validate({**LEAST, **example})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"device_path": " "}, "device_path"),
        ({"slot_bytes": 0}, "slot_bytes"),
        ({"slot_bytes": 2**20 + 512}, "slot_bytes must be a multiple of 4096"),
        ({"slot_bytes": 4096}, "slot_bytes 4096 leaves no room behind header_bytes 4096"),
        ({"header_bytes": 512}, "header_bytes"),
        ({"header_bytes": 5000}, "header_bytes must be a multiple of 4096"),
        ({"header_bytes": 2**20}, "leaves no room"),
        ({"block_align": 3000}, "power of two"),
        ({"block_align": 256}, "block_align"),
        ({"block_align": 16384, "meta_total_bytes": 20480}, "meta_total_bytes must be a multiple of 16384"),
        ({"capacity_bytes": 2**20}, "capacity_bytes 1048576 has no room for one slot"),
        ({"meta_magic": ""}, "meta_magic"),
        ({"meta_checkpoint_interval_sec": 0}, "meta_checkpoint_interval_sec"),
        ({"io_engine": "libaio"}, "io_engine"),
        ({"iouring_queue_depth": 0}, "iouring_queue_depth"),
        ({"num_load_workers": 0}, "num_load_workers"),
        ({"persist_enabled": False}, "must stay true"),
        ({"device": "/dev/sda"}, "device"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        RawBlockSettings.model_validate({**LEAST, **settings})


def test_every_setting_has_a_description() -> None:
    assert all(field.description for field in RawBlockSettings.model_fields.values())


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
