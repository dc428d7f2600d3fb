"""`lmcache plugins new`: names, places, and what is written.  That the result works is for tests/test_plugin_template.py."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.cli import main
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_devkit import new_plugin
from lmcache_devkit.new_plugin import KINDS, TEMPLATE, write_plugin


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_distribution_without_leftovers_of_the_template(tmp_path: Path, kind: OfferKind) -> None:
    new = write_plugin(kind, "acme_two", tmp_path)
    assert list(tmp_path.iterdir()) == [new.folder]
    about = tomllib.loads((new.folder / "pyproject.toml").read_text())["project"]
    assert about["name"] == new.distribution == new.folder.name
    (module,) = about["entry-points"]["lmcache.plugins.v1"].values()
    package = module.partition(".")[0]
    assert package == f"lmcache_{kind.prefix}_acme_two"
    library = {OfferKind.L2_ADAPTER: "l2-adapter", "coordinator_view": "fleet", "coordinator_state": "fleet"}.get(kind)
    expected = ["lmcache-core>=0.1,<0.2", *([f"lmcache-{library}>=0.1,<0.2"] if library else [])]
    assert about["dependencies"] == expected
    files = [path for path in new.folder.rglob("*") if path.is_file()]
    assert {f"src/{package}/plugin.py", f"src/{package}/py.typed", "README.md"} <= {
        str(path.relative_to(new.folder)) for path in files
    }
    assert any(path.parent.name == "tests" for path in files)
    for path in files:
        assert "$" not in path.read_text()
        assert path.suffix != ".template"


def test_the_adapter_to_start_from_is_small(tmp_path: Path) -> None:
    new = write_plugin(OfferKind.L2_ADAPTER, "acme", tmp_path)
    (adapter,) = new.folder.rglob("adapter.py")
    assert len(adapter.read_text().splitlines()) < 90


def test_plugins_of_one_vendor_have_names_of_their_own(tmp_path: Path) -> None:
    """Two plugins of one name are both left out."""
    names = []
    for kind in KINDS:
        about = tomllib.loads((write_plugin(kind, "acme", tmp_path).folder / "pyproject.toml").read_text())["project"]
        names += about["entry-points"]["lmcache.plugins.v1"]
        assert names[-1] == about["name"].removeprefix("lmcache-").replace("-", "_")
    assert len(set(names)) == len(KINDS)


def test_without_arguments_the_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "lmcache: say what to write: lmcache plugins new KIND NAME; kinds: l2_adapter, eviction_policy, "
    )
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["", "Acme", "acme-store", "2nd", "a__b", "a_", "_a", "../up", "class", "a" * 41, "é", "a b"]
)
def test_a_name_that_cannot_be_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name: small letters"):
        write_plugin(OfferKind.L2_ADAPTER, name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        (OfferKind.L2_ADAPTER, "memory", "lmcache-core"),
        (OfferKind.L2_ADAPTER, "redis", "lmcache-l2-redis"),
        (OfferKind.COMMAND, "server", "lmcache-core"),
        (OfferKind.SUBSCRIBER, "log", "lmcache-core"),
        (OfferKind.SUBSCRIBER, "builtin", "lmcache-core"),
        (OfferKind("coordinator_state"), "etcd", "lmcache-coordinator-etcd"),
    ],
)
def test_a_name_that_is_taken(tmp_path: Path, kind: OfferKind, name: str, owner: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is that of {owner}; choose another name"):
        write_plugin(kind, name, tmp_path)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lmcache-l2-acme").mkdir()
    with pytest.raises(ResourceError, match="lmcache-l2-acme is there already"):
        write_plugin(OfferKind.L2_ADAPTER, "acme", tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["lmcache-l2-acme"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot be written: No such file or directory"):
        write_plugin(OfferKind.L2_ADAPTER, "acme", tmp_path / "absent")


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path, words: object) -> None:
        if source.name != "common":
            raise OSError(28, "No space left on device")
        real(source, target, words)  # type: ignore[arg-type]

    real = new_plugin._copy
    monkeypatch.setattr(new_plugin, "_copy", copy)
    with pytest.raises(ResourceError, match="No space left on device"):
        write_plugin(OfferKind.L2_ADAPTER, "acme", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "eviction_policy", "acme", "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"pip install -e '{tmp_path}/lmcache-eviction-acme[testing]'" in said
    assert "lmcache plugins check eviction_policy:acme" in said
    assert main(["plugins", "new", "eviction", "acme"]) == 2
    assert "no kind of plugin is called 'eviction'; did you mean" in capsys.readouterr().err


def test_what_it_says_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = tmp_path / "sp ace" / "it's $HOME"
    into.mkdir(parents=True)
    assert main(["plugins", "new", "eviction_policy", "acme", "--into", str(into)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "pip install" in line]
    said = subprocess.run(["sh", "-c", f'printf "%s\\n" {line}'], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["pip", "install", "-e", f"{into}/lmcache-eviction-acme[testing]"]


def test_the_template_is_found_where_a_reader_looks_for_it() -> None:
    link = Path(__file__).parents[3] / "plugins" / "_template"
    assert link.resolve() == TEMPLATE.resolve()
    assert not (link / "pyproject.toml").exists()  # it would be taken for a distribution
