"""The catalogue names what there is: every plugin, offer, operation and setting, and the distribution that has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from lmcache_client import blend, handoff
from lmcache_client.errors import ConfigError
from lmcache_client.operations import KNOWN_REQUESTS, Operation
from lmcache_core.app.cli import main
from lmcache_core.app.plugins.catalogue import catalogue, not_installed
from lmcache_core.app.plugins.discovery import Origin
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.app.settings import flag_of

ROOT = Path(__file__).parents[3]


def test_every_remedy_names_a_distribution_that_there_is() -> None:
    files = [file for folder in ("plugins", "engines") for file in ROOT.glob(f"{folder}/*/pyproject.toml")]
    there_are = {tomllib.loads(file.read_text())["project"]["name"] for file in files}
    known = catalogue()
    named = {*known.plugins.values(), *known.offers.values(), *(each.distribution for each in known.settings.values())}
    assert named
    assert named <= there_are
    assert set(known.operations.values()) <= set(known.offers)
    by_name = {
        each.name for module in (blend, handoff) for each in vars(module).values() if isinstance(each, Operation)
    }
    sources = [file.read_text() for file in ROOT.glob("plugins/*/src/**/messages.py")]
    of_plugins = {name for source in sources for name in re.findall(r'\bOperation\(\s*"(\w+)"', source)}
    assert set(known.operations) <= {*by_name, *of_plugins, *(each.name for each in KNOWN_REQUESTS)}


def test_it_is_what_the_installed_plugins_say() -> None:
    plugins = load_plugins()
    rows = [row for row in plugins.rows() if row.candidate.origin is Origin.ENTRY_POINT and not row.unusable]
    ours = [row for row in rows if row.candidate.distribution in catalogue().plugins.values()]
    assert ours
    offers = {f"{each.kind}:{each.offer.name}": row.candidate.distribution for row in ours for each in row.offers}
    settings = {
        name: (
            flag_of(name, field).removeprefix("--"),
            group.plugin.name,
            group.plugin.distribution,
            field.annotation is bool,
        )
        for group in plugins.setting_groups()
        if group.plugin and group.plugin.distribution in catalogue().plugins.values()
        for name, field in group.model.model_fields.items()
    }
    owners = {row.candidate.distribution for row in ours}
    assert {key: owner for key, owner in catalogue().offers.items() if owner in owners} == offers
    assert {name: tuple(each) for name, each in catalogue().settings.items() if each.distribution in owners} == settings


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        (OfferKind.L2_ADAPTER, "valkey", "valkey -> pip install lmcache-l2-redis"),
        (OfferKind.PREFETCH_POLICY, "cost_aware", "cost_aware -> pip install lmcache-policies"),
        (OfferKind.REQUEST_MODULE, "blend", "blend -> pip install lmcache-blend"),
        (OfferKind.REQUEST_MODULE, "rewind", "no request module is called 'rewind'"),
    ],
)
def test_remedies_that_were_missing_or_wrong(only_core: None, kind: OfferKind, name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugins().offer(kind, name)
    assert says in str(caught.value)
    assert ("pip install" in str(caught.value)) is (name != "rewind")


def test_the_wheel_has_it_and_a_wheel_of_the_source_distribution_has_the_same(tmp_path: Path) -> None:
    builder = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*builder, "-t", "wheel", "-t", "sdist"], cwd=ROOT / "core", check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    (source,) = tmp_path.glob("*.tar.gz")
    name = "lmcache_core/app/plugins/catalogue.json"
    said = json.loads(zipfile.ZipFile(wheel).read(name))
    assert said["offers"] == dict(catalogue().offers)
    subprocess.run(["tar", "-xzf", str(source), "-C", str(tmp_path)], check=True)
    (folder,) = [each for each in tmp_path.iterdir() if each.is_dir()]
    builder[-1] = str(tmp_path / "again")
    subprocess.run([*builder, "-t", "wheel"], cwd=folder, check=True, capture_output=True)
    (again,) = (tmp_path / "again").glob("*.whl")
    assert json.loads(zipfile.ZipFile(again).read(name)) == said
    assert not (ROOT / "core/src" / name).exists(), "the checkout has none: it would be committed, or become stale"


def test_what_of_the_standard_installation_is_missing_is_said_in_one_line() -> None:
    required = [
        "blake3>=1.0",
        'lmcache-admin<0.2,>=0.1; extra == "standard"',
        "lmcache-tools<0.2,>=0.1 ; extra == 'standard'",
        'lmcache-native<0.2,>=0.1; (sys_platform == "linux" and platform_machine == "x86_64") and extra == "standard"',
        'pytest; extra == "testing"',
    ]
    assert not_installed(["lmcache-core", "lmcache-l2-s3"], required) == (
        "Not installed: lmcache-admin, lmcache-tools. HTTP API, metrics, operator commands, policies and files come with "
        "`pip install 'lmcache-core[standard]'`"
    )
    assert not_installed(["lmcache-admin", "lmcache-tools"], required) == ""


def test_the_standard_installation_names_distributions_that_there_are() -> None:
    read = [tomllib.loads(file.read_text())["project"] for file in ROOT.glob("*/*/pyproject.toml")]
    versions = {project["name"] for project in read}
    core = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
    standard = core["optional-dependencies"]["standard"]
    assert len(standard) >= 6
    assert {re.split("[<>=]", line)[0] for line in standard} <= versions


def test_listing_plugins_says_what_else_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "lmcache_core.app.plugins.catalogue.requires", lambda name: ['lmcache-absent; extra == "standard"']
    )
    assert main(["plugins", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Not installed: lmcache-absent. ")
    assert main(["plugins", "list", "--format", "json"]) == 0
    assert "lmcache-absent" not in capsys.readouterr().out
