"""What docs/plugins says is so: generated pages are up to date, nothing is missing, and the examples keep the requirements."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import pytest

import lmcache_core
from lmcache_client.operations import KNOWN_REQUESTS
from lmcache_core.app.plugins.discovery import Candidate, Origin
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts import hookspecs
from lmcache_core.contracts.capability import Capability
from scripts import plugin_docs
from scripts.adapter_fields import page_of
from tests.docs.markdown import DOCS, blocks

HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
PAGES = DOCS / "plugins"
REFERENCE = DOCS / "reference"


@pytest.fixture(scope="module")
def plugins() -> LoadedPlugins:
    return load_plugins()


@pytest.mark.parametrize("page", ["events.md", "request-types.md", "conformance.md"])
def test_a_generated_page_is_what_the_generator_writes(page: str) -> None:
    expected = plugin_docs.documents()[REFERENCE / page]
    assert (REFERENCE / page).read_text() == expected, "run: python -m scripts.plugin_docs"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_signature_and_an_example(hook: str) -> None:
    text = (REFERENCE / "hooks.md").read_text()
    _, heading, section = text.partition(f"\n## `{hook}`\n")
    assert heading, f"docs/reference/hooks.md has no section about {hook}"
    section = section.partition("\n## ")[0]
    signature = str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")
    assert f"```python\ndef {hook}{signature}\n```" in section
    assert "*When:*" in section
    assert "*Returns:*" in section
    assert f"@hookimpl\ndef {hook}(" in section


def test_every_event_is_documented() -> None:
    text = (REFERENCE / "events.md").read_text()
    kinds = plugin_docs.event_types()
    assert len(kinds) >= 13
    assert [kind.__name__ for kind in kinds if f"## `{kind.__name__}`" not in text] == []
    assert [kind.__name__ for kind in kinds if kind.__name__ not in lmcache_core.__all__] == [], "not in the public API"


def test_every_operation_is_documented() -> None:
    text = (REFERENCE / "request-types.md").read_text()
    assert [request.name for request in KNOWN_REQUESTS if f"| `{request.name}` |" not in text] == []


def test_every_capability_is_documented() -> None:
    text = (REFERENCE / "capabilities.md").read_text()
    assert [each.name for each in Capability if f"* `{each.name}`: " not in text] == []


def test_every_settings_field_of_every_offer_is_documented(plugins: LoadedPlugins) -> None:
    """Pages: docs/operate/backends for L2 adapters, reference/configuration.md for core's offers, else the plugin's README."""
    missing = []
    for row in plugins.rows():
        for offered in row.offers:
            model = plugins.model(offered.kind, offered.offer.name)
            page = page_about(offered.kind, offered.offer.name, row.candidate)
            text = page.read_text()
            missing += [
                f"{page.parent.name}: {name}"
                for name in (model.model_fields if model else ())
                if f"`{name}`" not in text
            ]
    assert missing == []


def page_about(kind: OfferKind, offer: str, plugin: Candidate) -> Path:
    if kind is OfferKind.L2_ADAPTER:
        return page_of(offer)
    return REFERENCE / "configuration.md" if plugin.origin is Origin.BUILTIN else readme_of(plugin.name)


def readme_of(plugin: str) -> Path:
    (entry,) = (each for each in entry_points(group=hookspecs.ENTRY_POINT_GROUP) if each.name == plugin)
    return folder_of(entry) / "README.md"


def folder_of(entry: EntryPoint) -> Path:
    module: ModuleType = entry.load()
    assert module.__file__
    return Path(module.__file__).parents[2]


PAGE_OF = {
    OfferKind.L1_MEMORY: "l1-memories.md",
    OfferKind.L2_ADAPTER: "l2-adapters.md",
    OfferKind.EVICTION_POLICY: "eviction-policies.md",
    OfferKind.STORE_POLICY: "store-and-prefetch-policies.md",
    OfferKind.PREFETCH_POLICY: "store-and-prefetch-policies.md",
    OfferKind.SERDE: "serdes.md",
    OfferKind.REQUEST_MODULE: "request-modules.md",
    OfferKind.SUBSCRIBER: "subscribers.md",
    OfferKind.HTTP_ROUTES: "http-routes.md",
    OfferKind.SERVICE: "services.md",
    OfferKind.TRANSFER_CHANNEL: "transfer-channels.md",
    OfferKind.COMMAND: "../reference/hooks.md#lmcache_commands",
}


@pytest.mark.parametrize("kind", OfferKind)
def test_every_kind_of_offer_has_a_page_that_the_index_names(kind: OfferKind) -> None:
    assert f"({PAGE_OF[kind]})" in (PAGES / "index.md").read_text()
    assert (PAGES / PAGE_OF[kind].partition("#")[0]).is_file()


EXAMPLES = {
    "eviction": ("eviction-policies.md", "Oldest", "EvictionPolicySuite", "open_oldest"),
    "stores": ("store-and-prefetch-policies.md", "LargeOnly", "StorePolicySuite", "open_large_only"),
    "loads": ("store-and-prefetch-policies.md", "LastFirst", "PrefetchPolicySuite", "open_last_first"),
    "bill": ("subscribers.md", "Bill", "SubscriberSuite", "open_bill"),
    "prices": ("http-routes.md", "Prices", "HttpRoutesSuite", "open_prices"),
    "watch": ("services.md", "Watchdog", "ServiceSuite", "open_watchdog"),
    "locked": ("l1-memories.md", "LockedMemory", "L1MemorySuite", "open_locked"),
    "channel": ("transfer-channels.md", "InProcess", "TransferChannelSuite", "open_in_process"),
    "peek": ("request-modules.md", "Peek", "RequestModuleSuite", "open_peek"),
    "stats": ("request-modules.md", "Stats", "RequestModuleSuite", "open_stats"),
    "deflate": ("serdes.md", "Deflate", "SerdeSuite", "Deflate"),
}
SUITE = """
    import pytest
    from lmcache_core import Offer
    from lmcache_devkit import {suite}


    class Test{name}({suite}):
        offer = Offer("{name}", "of the page", "page_{module}:{open}"{more})

        @pytest.fixture
        def settings(self, tmp_path):
            return {settings}
"""


@pytest.mark.slow
def test_the_examples_of_the_pages_keep_the_requirements(tmp_path: Path) -> None:
    for module, (page, name, suite, opener) in EXAMPLES.items():
        (source,) = (block for block in blocks(f"plugins/{page}", "python") if re.search(rf"class {name}\b", block))
        if module == "deflate":  # a class is not an opener
            source, opener = f"{source}\n\ndef open_deflate(settings):\n    return Deflate()\n", "open_deflate"
        (tmp_path / f"page_{module}.py").write_text(source)
        of_bill = module == "bill"
        test = SUITE.format(
            suite=suite,
            name=name,
            module=module,
            open=opener,
            more=', "page_bill:BillSettings"' if of_bill else "",
            settings='{"path": str(tmp_path / "bill.csv")}' if of_bill else "{}",
        )
        (tmp_path / f"test_{module}.py").write_text(inspect.cleandoc(test))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
