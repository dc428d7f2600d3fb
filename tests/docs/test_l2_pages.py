"""docs/operate/backends has a page for every adapter, each knows every field, and what it tells people to type is accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lmcache_core.app.adapter_specs import adapter_spec, adapter_specs
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.capability import Capability
from scripts import adapter_fields, plugin_docs
from tests.docs.markdown import commands

PAGES = adapter_fields.FOLDER
OWN = (
    "dax",
    "fault_inject",
    "fs",
    "fs_native",
    "infinistore",
    "lm",
    "memory",
    "mock",
    "mooncake_store",
    "nixl_store",
    "nixl_store_dynamic",
    "p2p",
    "raw_block",
    "redis",
    "s3",
)
"""The adapters of this repository: all are installed where its tests run."""
NO_ADAPTER = {"index", "shared"}
"""Pages about several of them."""
CHOOSING = PAGES / "index.md"
_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(adapter: str) -> str:
    return adapter_fields.page_of(adapter).stem


@pytest.fixture(scope="module")
def plugins() -> LoadedPlugins:
    return load_plugins()


def test_every_adapter_has_a_page_and_every_page_an_adapter(plugins: LoadedPlugins) -> None:
    installed = {offer.name for offer in plugins.offers(OfferKind.L2_ADAPTER)}
    assert installed == {*OWN, *adapter_fields.OTHER_NAMES}
    assert {page.stem for page in PAGES.glob("*.md")} - NO_ADAPTER == {page_name(adapter) for adapter in OWN}


@pytest.mark.parametrize("adapter", OWN)
def test_the_table_of_fields_is_what_the_generator_writes(adapter: str, plugins: LoadedPlugins) -> None:
    page = adapter_fields.page_of(adapter)
    text = page.read_text()
    assert adapter_fields.begin_of(adapter) in text, f"{page.name} has no mark for its table of fields"
    assert plugin_docs.documents()[page] == text, "run: python -m scripts.plugin_docs"
    model = plugins.model(OfferKind.L2_ADAPTER, adapter)
    assert [name for name in (model.model_fields if model else ()) if f"\n* `{name}` (" not in text] == []


@pytest.mark.parametrize("adapter", OWN)
def test_a_page_says_what_an_operator_asks_first(adapter: str) -> None:
    text = adapter_fields.page_of(adapter).read_text()
    assert f"`{adapter}`" in text.splitlines()[0]
    for heading in ("Fields", "What it guarantees", "Sizing", "When something is wrong"):
        assert f"\n## {heading}\n" in text, f"{adapter}.md has no section '{heading}'"


def test_a_page_with_half_of_the_marks_is_refused(plugins: LoadedPlugins) -> None:
    for text in (adapter_fields.BEGIN, f"{adapter_fields.END}\n{adapter_fields.BEGIN}", 2 * adapter_fields.BEGIN):
        with pytest.raises(ValueError, match=r"memory.md needs these two lines once each"):
            adapter_fields.with_fields(text, plugins, "memory")


# --- the page that helps to choose


@pytest.mark.parametrize("adapter", OWN)
def test_the_choosing_page_has_what_each_adapter_declares(adapter: str, plugins: LoadedPlugins) -> None:
    lines = CHOOSING.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| [`{adapter}`]({page_name(adapter)}.md)")]
    (head,) = [line for line in lines if line.startswith("| adapter | ")]
    cells = dict(zip(head.split("|"), line.split("|"), strict=True))
    offer = plugins.offer(OfferKind.L2_ADAPTER, adapter)
    for capability in Capability:
        said = cells[f" `{capability.name}` "].strip()
        if offer.wraps:  # it may change bytes after the inner adapter has looked at them
            right = said == ("no" if capability is Capability.VERIFIES else "as inside")
        elif capability in offer.optional_capabilities:
            right = said.startswith("with `")
        else:
            right = said == ("yes" if capability in offer.capabilities else "no")
        assert right, f"{adapter}: {capability.name} is '{said}'"


# --- what people type


def blocks_with_adapters() -> list[tuple[str, str]]:
    """Every fenced block of the pages that configures an adapter, with the page that it is on."""
    pages = sorted([*PAGES.glob("*.md"), PAGES.parent / "l2.md"])
    return [
        (page.name, block) for page in pages for block in _FENCED.findall(page.read_text()) if "--l2-adapter" in block
    ]


@pytest.mark.parametrize(("page", "block"), blocks_with_adapters(), ids=lambda value: value[:24])
def test_every_example_of_the_pages_is_accepted(page: str, block: str, plugins: LoadedPlugins) -> None:
    flags = [flags for words in commands(block) if (flags := server_flags_of(words))]
    assert flags, f"{page} configures no adapter here"
    for each in flags:
        assert adapter_specs(read_settings(ServerFlags().given(each)).l2_adapter, plugins)


def server_flags_of(words: list[str]) -> list[str]:
    """Flags come alone, or behind `lmcache server`; other commands of a block have none."""
    if words[0].startswith("--"):
        return words
    return words[2:] if words[:2] == ["lmcache", "server"] else []


def test_the_pages_have_examples_to_try() -> None:
    assert {page.removesuffix(".md") for page, _ in blocks_with_adapters()} >= {page_name(adapter) for adapter in OWN}


EXAMPLES = """
{"type": "fs", "base_path": "/data/lmcache/l2"}

{"type": "fs", "base_path": "/data/lmcache/l2", "relative_tmp_dir": ".tmp"}

{"type": "fs", "base_path": "/data/lmcache/l2", "use_odirect": true}

{"type": "fs", "base_path": "/data/lmcache/l2", "read_ahead_size": 1048576}

{"type": "dax", "device_path": "/dev/dax1.0", "max_dax_size_gb": 100, "slot_bytes": 268435456,
 "num_store_workers": 1, "num_lookup_workers": 1, "num_load_workers": 4,
 "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.9, "eviction_ratio": 0.1}}

{"type": "dax", "device_path": "/dev/dax1.0", "max_dax_size_gb": 100, "slot_bytes": 268435456, "persist_enabled": true}

{"type": "fs_native", "base_path": "/data/lmcache/l2"}

{"type": "fs_native", "base_path": "/data/lmcache/l2", "num_workers": 32}

{"type": "fs_native", "base_path": "/data/lmcache/l2", "num_workers": 32, "use_odirect": true}

{"type": "fs_native", "base_path": "/data/lmcache/l2", "relative_tmp_dir": "", "read_ahead_size": 1048576,
 "max_capacity_gb": 0}

{"type": "raw_block", "device_path": "/dev/nvme0n1", "slot_bytes": 1048576, "block_align": 4096, "header_bytes": 4096,
 "meta_total_bytes": 268435456, "use_odirect": true, "num_store_workers": 2, "num_lookup_workers": 1,
 "num_load_workers": 4}

{"type": "raw_block", "device_path": "/dev/nvme0n1", "slot_bytes": 1048576, "io_engine": "io_uring",
 "iouring_queue_depth": 256, "use_odirect": true}

{"type": "raw_block", "device_path": "/dev/nvme0n1", "slot_bytes": 1048576, "load_checkpoint_on_init": false,
 "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.9, "eviction_ratio": 0.1}}

{"type": "raw_block", "device_path": "/dev/nvme0n1", "slot_bytes": 1048576, "io_engine": "posix"}

{"type": "mock", "max_size_gb": 256, "mock_bandwidth_gb": 10}
""".strip().split("\n\n")
"""As people know them from the public server's documentation, and variants with its other fields and defaults."""


@pytest.mark.parametrize("given", EXAMPLES, ids=lambda given: json.loads(given)["type"])
def test_what_people_bring_along_is_accepted(given: str, plugins: LoadedPlugins, tmp_path: Path) -> None:
    values = elsewhere(json.loads(given), tmp_path)
    spec = adapter_spec(values, plugins, "--l2-adapter[0]", ())
    assert (spec.offer.name, spec.settings is not None) == (values["type"], True)
    assert (spec.eviction is not None) == ("eviction" in values)


def elsewhere(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with a directory and a device of the test's."""
    device = folder / "device"
    device.touch()
    places = {"base_path": folder / "l2", "device_path": device}
    return {name: str(places[name]) if name in places else value for name, value in values.items()}


def test_the_buffer_only_recipe_is_accepted(plugins: LoadedPlugins) -> None:
    command = """
    --host 0.0.0.0 --port 5555 --max-workers 32 --l1-size-gb 32 --l1-use-lazy --eviction-policy noop
    --l2-store-policy skip_l1 --l2-prefetch-policy default
    --l2-adapter '{"type": "fs_native", "base_path": "/data/lmcache/l2", "num_workers": 32, "use_odirect": true}'
    """
    settings = read_settings(ServerFlags().given(shlex.split(command)))
    assert (settings.eviction_policy, settings.l2_store_policy, settings.l1_use_lazy) == ("noop", "skip_l1", True)
    (spec,) = adapter_specs(settings.l2_adapter, plugins)
    assert spec.name == "fs_native"
    for kind, name in (
        (OfferKind.EVICTION_POLICY, "noop"),
        (OfferKind.STORE_POLICY, "skip_l1"),
        (OfferKind.PREFETCH_POLICY, "default"),
    ):
        assert plugins.offer(kind, name).name == name
