"""What the distribution offers, and which settings make sense."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from lmcache_l2_nixl.config import (
    PASSED_ON,
    DynamicParams,
    NixlStoreDynamicSettings,
    NixlStoreSettings,
    StoreParams,
)
from lmcache_l2_nixl.dynamic import CAPABILITIES as DYNAMIC
from lmcache_l2_nixl.plugin import lmcache_l2_adapters
from lmcache_l2_nixl.store import CAPABILITIES as STORE

MODELS: dict[str, type[BaseModel]] = {
    "nixl_store": NixlStoreSettings, "nixl_store_dynamic": NixlStoreDynamicSettings
}  # fmt: skip
PAGE = Path(__file__).parents[3] / "docs" / "operate" / "backends" / "nixl.md"
POOL = {"backend": "POSIX", "pool_size": 4, "backend_params": {"file_path": "/data"}}
FILES = {"backend": "POSIX", "backend_params": {"file_path": "/data"}}
BUCKET = {"backend": "OBJ", "pool_size": 4}


def test_the_entry_point_leads_to_two_offers_whose_parts_exist_and_agree() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="nixl")
    assert entry.load().lmcache_l2_adapters is lmcache_l2_adapters
    offers = {offer.name: offer for offer in lmcache_l2_adapters()}
    for name, model in MODELS.items():
        assert resolve(offers[name].settings or "") is model
        assert callable(resolve(offers[name].open))
    assert offers["nixl_store"].capabilities == STORE
    assert offers["nixl_store_dynamic"].capabilities == DYNAMIC


def test_neither_listing_nor_settings_nor_adapters_import_nixl() -> None:
    code = (
        "import sys, lmcache_l2_nixl.plugin as p; p.lmcache_l2_adapters(); "
        "light = {'pydantic', 'lmcache_l2_nixl.config'} & set(sys.modules); "
        "import lmcache_l2_nixl.store, lmcache_l2_nixl.dynamic; "
        "print(sorted(light), sorted(name for name in sys.modules if name.split('.')[0] in ('nixl', 'nixl_cu12', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] []"


FILE = {"file_path": "/d"}
BUFFERED, DIRECT = {**FILE, "use_direct_io": "false"}, {**FILE, "use_direct_io": "true"}
AZURE = {"account_url": "https://a.blob.core.windows.net", "container_name": "c"}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("nixl_store", {"backend": "POSIX", "backend_params": BUFFERED, "pool_size": 64}),
        ("nixl_store", {"backend": "GDS", "backend_params": DIRECT, "pool_size": 128}),
        ("nixl_store", {"backend": "GDS_MT", "backend_params": {**FILE, "use_direct_io": True}, "pool_size": "128"}),
        ("nixl_store", {"backend": "HF3FS", "backend_params": BUFFERED, "pool_size": 64}),
        ("nixl_store", {"backend": "OBJ", "backend_params": {}, "pool_size": 32}),
        ("nixl_store", {"backend": "AZURE_BLOB", "backend_params": AZURE, "pool_size": 32}),
        ("nixl_store_dynamic", {"backend": "POSIX", "backend_params": {**BUFFERED, "max_capacity_gb": "10"}}),
        (
            "nixl_store_dynamic",
            {"backend": "GDS", "backend_params": {**DIRECT, "max_capacity_gb": 50}, "persist_enabled": False},
        ),
    ],
)
def test_what_operators_write_is_taken(name: str, written: dict[str, Any]) -> None:
    MODELS[name].model_validate_json(json.dumps(written))


def test_text_and_value_are_the_same() -> None:
    as_text = {
        "file_path": "/d",
        "use_direct_io": "true",
        "max_capacity_gb": "10",
        "use_uring": "true",
        "ios_pool_size": "9",
    }
    as_value = {"file_path": "/d", "use_direct_io": True, "max_capacity_gb": 10, "use_uring": True, "ios_pool_size": 9}
    assert DynamicParams.model_validate(as_text) == DynamicParams.model_validate(as_value)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("nixl_store", {**POOL, "pool_size": 0}, "pool_size"),
        ("nixl_store", {"backend": "POSIX", "backend_params": {"file_path": "/d"}}, "pool_size"),
        ("nixl_store", {"backend": "POSIX", "pool_size": 4}, "file_path is required with POSIX"),
        ("nixl_store", {**POOL, "backend_params": {"file_path": " "}}, "must name a directory"),
        ("nixl_store", {**POOL, "backend_params": {"file_path": "/d", "bucket": "b"}}, "bucket is nothing that POSIX knows"),
        ("nixl_store", {**POOL, "backend_params": {"file_path": "/d", "path": "b"}}, "path"),
        ("nixl_store", {**POOL, "backend": "TAPE"}, "backend"),
        ("nixl_store", {**POOL, "slot_bytes": 4096}, "slot_bytes"),
        ("nixl_store", {**POOL, "slot_bytes": 10000}, "multiple of 4096"),
        ("nixl_store", {**POOL, "persist_enabled": False}, "nixl_store_dynamic"),
        ("nixl_store", {**BUCKET, "backend_params": {"file_path": "/d"}}, "file_path is nothing that OBJ knows"),
        ("nixl_store", {**BUCKET, "backend_params": {"access_key": "a"}}, "access_key and secret_key belong together"),
        ("nixl_store", {**BUCKET, "owner_lease_seconds": 0}, "owner_lease_seconds"),
        (
            "nixl_store",
            {
                "backend": "AZURE_BLOB", "pool_size": 4,
                "backend_params": {"account_url": "https://a", "connection_string": "x"},
            },
            "exclude each other",
        ),
        ("nixl_store_dynamic", {**FILES, "backend": "OBJ"}, "backend"),
        ("nixl_store_dynamic", {"backend": "POSIX"}, "file_path is required"),
        ("nixl_store_dynamic", {**FILES, "pool_size": 4}, "pool_size"),
        ("nixl_store_dynamic", {**FILES, "backend_params": {"file_path": "/d", "max_capacity_gb": "-1"}}, "max_capacity_gb"),
        ("nixl_store_dynamic", {**FILES, "backend_params": {"file_path": "/d", "max_capacity_gb": "nan"}}, "max_capacity_gb"),
        (
            "nixl_store_dynamic",
            {**FILES, "backend_params": {"file_path": "/d", "use_aio": "true", "use_uring": "true"}},
            "exclude each other",
        ),
        ("nixl_store_dynamic", {**FILES, "queue_depth": 0}, "queue_depth"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        MODELS[name].model_validate(settings)


def test_nixl_receives_what_was_set_and_nothing_else() -> None:
    params = StoreParams.model_validate({"bucket": "b", "use_virtual_addressing": "false", "num_threads": "4"})
    assert params.for_nixl("OBJ") == {"bucket": "b", "use_virtual_addressing": "false", "num_threads": "4"}
    files = StoreParams.model_validate({"file_path": "/d", "use_direct_io": True, "use_uring": True})
    assert files.for_nixl("POSIX") == {"use_uring": "true"}


def test_secrets_are_passed_to_nixl_alone() -> None:
    secrets = {
        "access_key": "AKIA-hidden", "secret_key": "very-hidden", "session_token": "token-hidden",
        "connection_string": "string-hidden",
    }  # fmt: skip
    params = StoreParams.model_validate(secrets)
    settings = NixlStoreSettings.model_validate(
        {**BUCKET, "backend_params": {"access_key": "k-hidden", "secret_key": "hidden"}}
    )
    for shown in (
        repr(params),
        str(params.model_dump()),
        params.model_dump_json(),
        repr(settings),
        settings.model_dump_json(),
    ):
        assert "hidden" not in shown
    assert params.for_nixl("OBJ")["secret_key"] == "very-hidden"
    assert params.for_nixl("AZURE_BLOB") == {"connection_string": "string-hidden"}


def test_every_setting_has_a_description_and_is_on_the_page() -> None:
    page = PAGE.read_text()
    models: list[type[BaseModel]] = [*MODELS.values(), StoreParams, DynamicParams]
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description, name
            assert f"`{name}`" in page, f"docs/operate/backends/nixl.md says nothing of {name}"
    assert set().union(*PASSED_ON.values()) <= set(StoreParams.model_fields)


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
