"""What the distribution offers, and that none of it needs torch where no GPU is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
from pydantic import ValidationError

from lmcache_client.operations import KNOWN_REQUESTS, Operation
from lmcache_devkit import RequestModuleSuite
from lmcache_transfer_torch.config import TransferSettings
from lmcache_transfer_torch.messages import REGISTER, RETRIEVE, STORE, UNREGISTER
from lmcache_transfer_torch.plugin import lmcache_request_modules


class TestConformance(RequestModuleSuite):
    offer = "lmcache_driven"


def test_the_entry_point_leads_to_one_offer_whose_parts_exist() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="transfer_torch")
    assert entry.load().lmcache_request_modules is lmcache_request_modules
    (offer,) = lmcache_request_modules()
    assert offer.settings is not None
    assert resolve(offer.settings) is TransferSettings
    assert callable(resolve(offer.open))


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import lmcache_transfer_torch.plugin as p; p.lmcache_request_modules()", {"pydantic", "msgspec", "torch"}),
        ("import lmcache_transfer_torch.module", {"torch"}),
    ],
)
def test_nothing_is_imported_before_it_is_needed(code: str, unwanted: set[str]) -> None:
    code = f"import sys; {code}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("operation", [REGISTER, UNREGISTER, STORE, RETRIEVE], ids=lambda operation: operation.name)
def test_operations_have_the_names_numbers_and_negatives_of_the_protocol(operation: Operation) -> None:
    (known,) = [known for known in KNOWN_REQUESTS if known.name == operation.name]
    assert (known.wire_id, known.negative) == (operation.wire_id, operation.negative)


def test_settings_have_defaults_and_descriptions() -> None:
    assert TransferSettings.model_validate({}).model_dump() == {
        "isolated_ipc": False, "null_block_id": 0, "separate_object_groups": False, "copy_threads": 1,
    }  # fmt: skip
    assert all(field.description for field in TransferSettings.model_fields.values())


@pytest.mark.parametrize(
    ("field", "value"), [("null_block_id", -1), ("copy_threads", 0), ("copy_threads", 3), ("x", 1)]
)
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        TransferSettings.model_validate({field: value})


def resolve(name: str) -> object:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
