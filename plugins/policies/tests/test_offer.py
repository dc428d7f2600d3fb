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

from lmcache_core import Offer, PluginSettings
from lmcache_policies import plugin

EVICTION = [
    "ARC",
    "FIFO",
    "IsolatedLRU",
    "LeastHitDensity",
    "LFU",
    "MRU",
    "noop",
    "S3FIFO",
    "SIEVE",
    "SLRU",
    "W-TinyLFU",
]


def offers() -> list[Offer]:
    return [*plugin.lmcache_eviction_policies(), *plugin.lmcache_store_policies(), *plugin.lmcache_prefetch_policies()]


def model_of(offer: Offer) -> type[PluginSettings]:
    assert offer.settings is not None
    model: type[PluginSettings] = resolve(offer.settings)
    return model


def resolve(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


REQUIRED: dict[str, dict[str, Any]] = {"cost_aware": {"prefill_tokens_per_second": 10_000}}
"""Settings without a default."""
TUNABLE = {offer.name: offer for offer in offers() if offer.settings}


def test_the_entry_point_leads_to_the_offers() -> None:
    (entry,) = entry_points(group="lmcache.plugins.v1", name="policies")
    assert entry.load() is plugin
    assert {offer.name for offer in plugin.lmcache_eviction_policies()} >= set(EVICTION)
    assert {offer.name for offer in plugin.lmcache_store_policies()} == {"skip_l1", "second_use"}
    assert {offer.name for offer in plugin.lmcache_prefetch_policies()} == {"cost_aware", "retain"}


@pytest.mark.parametrize("offer", offers(), ids=lambda offer: offer.name)
def test_every_offer_opens_with_its_defaults(offer: Offer) -> None:
    settings = model_of(offer).model_validate(REQUIRED.get(offer.name, {})) if offer.settings else None
    assert resolve(offer.open)(settings) is not resolve(offer.open)(settings)


def test_listing_imports_no_settings_and_no_policy() -> None:
    code = (
        "import sys, lmcache_policies.plugin as p; "
        "p.lmcache_eviction_policies(), p.lmcache_store_policies(), p.lmcache_prefetch_policies(); "
        "print([m for m in sys.modules if m == 'pydantic' or m.startswith('lmcache_policies.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['lmcache_policies.plugin']"


@pytest.mark.parametrize("offer", TUNABLE.values(), ids=TUNABLE)
def test_every_setting_has_a_description(offer: Offer) -> None:
    assert all(field.description for field in model_of(offer).model_fields.values())


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("SLRU", "protected_share", 0), ("SLRU", "protected_share", 1), ("SLRU", "share", 0.5),
        ("S3FIFO", "small_share", 1.5), ("S3FIFO", "promotion_hits", 0), ("S3FIFO", "promotion_hits", 4),
        ("W-TinyLFU", "window_share", 0), ("W-TinyLFU", "protected_share", float("nan")),
        ("LFU", "halving_hits_per_object", -1), ("LFU", "halving_hits_per_object", "never"),
        ("cost_aware", "prefill_tokens_per_second", 0), ("cost_aware", "safety_factor", 0.5),
        ("cost_aware", "minimum_samples", 0), ("cost_aware", "exploration_share", 1.5),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(name: str, field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        model_of(TUNABLE[name]).model_validate({**REQUIRED.get(name, {}), field: value})


@pytest.mark.parametrize("offer", offers(), ids=lambda offer: offer.name)
def test_the_readme_names_every_offer_and_every_setting(offer: Offer) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"`{offer.name}`" in text
    assert all(f"`{field}`" in text for field in (model_of(offer).model_fields if offer.settings else ()))
