"""What is asked for: found, opened, or answered with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.tests.app.plugin_rows import Install, row
from lmcache_client.codec import decode_operation_frame
from lmcache_client.errors import ConfigError, ProtocolError
from lmcache_core.app.plugins.discovery import Candidate, Origin, Status
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.plugin_fault import place_of
from lmcache_core.model.errors import PluginError, PluginLoadError

# what is asked for and not there


def test_an_unknown_name_is_answered_with_what_is_installed_and_what_could_be(only_core: None) -> None:
    plugins = load_plugins()
    with pytest.raises(ConfigError) as caught:
        plugins.offer("l2_adapter", "s4")
    assert str(caught.value) == (
        "no L2 adapter is called 's4'. Installed: memory (lmcache-core 0.1.0). "
        "Known but not installed: s3 -> pip install lmcache-l2-s3"
    )
    with pytest.raises(ConfigError, match="did you mean 'LRU'"):
        plugins.offer("eviction_policy", "LRUU")
    with pytest.raises(ConfigError, match="noop -> pip install lmcache-policies"):
        plugins.offer("eviction_policy", "noop")


def test_a_guess_ends_its_sentence(install: Install, only_core: None) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugins().offer("eviction_policy", "LRUU")
    assert str(caught.value) == (
        "no eviction policy is called 'LRUU'; did you mean 'LRU'? Installed: LRU (lmcache-core 0.1.0)"
    )


def test_a_plugin_that_is_named_after_its_kind_is_found_by_the_name_of_its_offer(install: Install) -> None:
    install("l2_acme", "import no_such_library")
    with pytest.raises(PluginLoadError, match=r"L2 adapter 'acme' is not available: .*no_such_library"):
        load_plugins().offer("l2_adapter", "acme")


def test_a_broken_plugin_that_the_configuration_needs_is_named_with_its_error(install: Install) -> None:
    install("s3", "import boto_three", distribution="lmcache-l2-s3")
    plugins = load_plugins()
    with pytest.raises(PluginLoadError, match=r"L2 adapter 's3' is not available: .*No module named 'boto_three'"):
        plugins.offer("l2_adapter", "s3")


# opening


OPENING = """
    from lmcache_core import ConfigError, Offer, PluginSettings, hookimpl

    class AcmeSettings(PluginSettings):
        size: int = 1

    def open_it(settings, context): return (settings.size, context)
    def open_badly(settings): raise OSError("no such device")
    def open_buggily(settings): return no_such_name
    def open_wrong(settings): raise ConfigError("size is too small")

    @hookimpl
    def lmcache_l2_adapters():
        here = "acme_plugin"
        return [
            Offer("good", "s", f"{here}:open_it", f"{here}:AcmeSettings"),
            Offer("bad", "s", f"{here}:open_badly"),
            Offer("buggy", "s", f"{here}:open_buggily"),
            Offer("gone", "s", f"{here}.adaptr:open"),
            Offer("gone_settings", "s", f"{here}:open_it", f"{here}.config:S"),
            Offer("wrong", "s", f"{here}:open_wrong"),
            Offer("absent", "s", "boto_three.session:open"),
            Offer("nameless", "s", f"{here}:nothing"),
            Offer("other_model", "s", f"{here}:open_it", f"{here}:open_it"),
        ]
    """


def test_opening_an_offer_makes_its_plugin_active(install: Install) -> None:
    install("acme", OPENING)
    plugins = load_plugins()
    assert row(plugins, "acme").status is Status.AVAILABLE
    model = plugins.model("l2_adapter", "good")
    assert model is not None
    assert plugins.open("l2_adapter", "good", model(size=7), "context") == (7, "context")  # type: ignore[call-arg]
    assert row(plugins, "acme").status is Status.ACTIVE


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "bad",
            r"L2 adapter 'bad' \(acme-dist 1.0\) cannot be opened: OSError: no such device \(/.*/acme_plugin.py:8\)$",
        ),
        ("buggy", r"NameError: name 'no_such_name' is not defined \(/.*/acme_plugin.py:9\)$"),
        ("gone", r"cannot be opened: open names module acme_plugin.adaptr, which acme-dist does not have$"),
        ("absent", r"No module named 'boto_three'; .*pip install --upgrade acme-dist"),
        ("nameless", r"cannot be opened: AttributeError"),
    ],
)
def test_an_offer_that_cannot_be_opened(install: Install, name: str, says: str) -> None:
    install("acme", OPENING)
    with pytest.raises(PluginLoadError, match=says):
        load_plugins().open("l2_adapter", name, None)


def test_settings_in_a_module_that_the_distribution_does_not_have(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(
        PluginLoadError, match=r"settings names module acme_plugin.config, which acme-dist does not have$"
    ):
        load_plugins().model("l2_adapter", "gone_settings")


# a plugin whose source is here


def installed_from(folder: Path, metadata: Path, editable: bool) -> None:
    about = {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}}
    (metadata / "direct_url.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import os\nimport no_such_library\n", ":2"),
        ("x = 1\ndef broken(:\n", ":2"),
        ("from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters():\n    return 1 / 0\n", ":4"),
        ("from lmcache_core import hookimpl\n@hookimpl\ndef lmcache_l2_adapters(): pass\n", ""),
    ],
)
def test_the_remedy_is_a_line_where_the_source_is_here(
    install: Install, tmp_path: Path, source: str, line: str
) -> None:
    installed_from(tmp_path / "my source", install("acme", source), editable=True)
    fix = f"fix {tmp_path}/acme_plugin.py{line}"
    assert row(load_plugins(), "acme").remedy == f"{fix}, or leave it out: --no-plugin acme"


def test_a_copy_is_installed_again_when_its_source_is_fixed(install: Install, tmp_path: Path) -> None:
    installed_from(tmp_path / "my source", install("acme", "1 / 0\n"), editable=False)
    fix = f"fix {tmp_path}/acme_plugin.py:1 and install {tmp_path}/my source again"
    assert row(load_plugins(), "acme").remedy == f"{fix}, or leave it out: --no-plugin acme"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"url": "https://example.org/a.whl", "archive_info": {}}'])
def test_what_came_from_elsewhere_is_installed_again_where_that_helps(
    install: Install, tmp_path: Path, text: str
) -> None:
    """A file of it is missing; a fault in its code is there again afterwards."""
    (install("acme", "import acme_plugin.missing\n") / "direct_url.json").write_text(text)
    assert str(row(load_plugins(), "acme").remedy).startswith("pip install --force-reinstall acme-dist, or")
    (install("zeta", "1 / 0\n") / "direct_url.json").write_text(text)
    says = f"tell its author: the fault is at {tmp_path}/zeta_plugin.py:1, or leave it out: --no-plugin zeta"
    assert row(load_plugins(), "zeta").remedy == says


def test_a_line_of_the_client_library_is_not_where_a_plugin_failed() -> None:
    acme = Candidate("acme", "acme_plugin", Origin.ENTRY_POINT)
    with pytest.raises(ProtocolError) as caught:
        decode_operation_frame(b"")
    assert str(place_of(caught.value, acme)).startswith(f"{__file__}:")


def test_the_plugins_own_configuration_errors_pass_through(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(ConfigError, match=r"^size is too small$"):
        load_plugins().open("l2_adapter", "wrong", None)


def test_a_settings_model_must_be_one(install: Install) -> None:
    install("acme", OPENING)
    with pytest.raises(PluginError, match="is not a PluginSettings model"):
        load_plugins().model("l2_adapter", "other_model")
