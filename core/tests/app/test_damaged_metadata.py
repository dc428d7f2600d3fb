"""Distributions of plugins whose metadata cannot be read: rows of the list, and no harm to anybody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from core.tests.app.test_cli import Environment, lmcache
from lmcache_core.app.plugins.discovery import PluginRow, Status
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.errors import PluginLoadError

Install = Callable[..., Path]
GROUP = "lmcache.plugins.v1"
NOT_UTF8 = b"\xff\xfe"


def row(name: str, **selection: object) -> PluginRow:
    (found,) = [each for each in load_plugins(**selection).rows() if each.candidate.name == name]  # type: ignore[arg-type]
    return found


def no_utf8_metadata(folder: Path) -> None:
    (folder / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: acme-dist\n" + NOT_UTF8)


def no_utf8_entry_points(folder: Path) -> None:
    (folder / "entry_points.txt").write_bytes(f"[{GROUP}]\nacme = acme_plugin\n".encode() + NOT_UTF8)


def no_equals_sign(folder: Path) -> None:
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nacme acme_plugin\n")


DAMAGE: dict[Callable[[Path], None], tuple[str, str]] = {
    no_utf8_metadata: ("METADATA: 'utf-8' codec can't decode byte 0xff", "acme_dist"),
    no_utf8_entry_points: ("entry_points.txt: 'utf-8' codec can't decode byte 0xff", "acme-dist"),
    no_equals_sign: ("entry_points.txt: a line is not 'name = value'", "acme-dist"),
}
EVERY_DAMAGE = pytest.mark.parametrize("damage", DAMAGE)


@EVERY_DAMAGE
@pytest.mark.parametrize("selection", [{}, {"safe_mode": True}, {"selected": ["builtin"]}])
def test_it_is_a_broken_row_with_a_remedy_whatever_is_selected(
    install: Install, damage: Callable[[Path], None], selection: dict[str, object]
) -> None:
    folder = install("acme")
    install("zeta")
    damage(folder)
    found = row("acme_dist", **selection)
    says, to_install = DAMAGE[damage]
    assert found.status is Status.BROKEN
    assert found.error is not None
    assert found.error.startswith(f"its metadata cannot be read: {says}")
    assert found.remedy == (
        f"pip install --force-reinstall {to_install}, or remove the folder {folder}, "
        "or leave it out: --no-plugin acme_dist"
    )
    assert str(found) in load_plugins(**selection).warnings  # type: ignore[arg-type]
    assert "\n" not in str(found)
    if not selection:
        assert load_plugins().offer("l2_adapter", "zeta").name == "zeta"


@EVERY_DAMAGE
def test_commands_show_it_and_can_leave_it_out(
    install: Install, child_environment: Environment, damage: Callable[[Path], None]
) -> None:
    damage(install("acme"))
    for flags in ((), ("--safe-mode",)):
        done = lmcache(child_environment, "plugins", "list", "--json", *flags)
        (found,) = [each for each in json.loads(done.stdout) if each["name"] == "acme_dist"]
        assert (found["status"], done.returncode, done.stderr) == ("broken", 0, "")
        for command in ("list", "show acme_dist"):
            said = lmcache(child_environment, "plugins", *command.split(), *flags)
            assert "its metadata cannot be read: " in said.stdout
            assert "--force-reinstall" in said.stdout
    assert row("acme_dist", blocked=["acme_dist"]).status is Status.BLOCKED


@EVERY_DAMAGE
def test_a_server_gets_as_far_as_ever(
    install: Install, child_environment: Environment, damage: Callable[[Path], None]
) -> None:
    """pydantic looks at every installed distribution unless that is switched off."""
    damage(install("acme"))
    served = lmcache(
        child_environment, "server", "--l1-size-gb", "0.1", "--no-http", "--port", "0", "--l2-adapter", "{}"
    )
    assert served.returncode == 2
    assert "lmcache: --l2-adapter" in served.stderr
    assert "Traceback" not in served.stderr


def test_a_folder_that_is_called_otherwise_than_its_distribution(install: Install) -> None:
    """What is known of the name goes into the remedy, and the row is called after the folder, which can be removed."""
    folder = install("acme").rename
    odd = folder(install("zeta").with_name("odd-3.dist-info"))
    no_equals_sign(odd)
    found = row("odd")
    assert found.remedy is not None
    assert found.remedy.startswith(f"pip install --force-reinstall acme-dist, or remove the folder {odd},")


def test_a_folder_that_is_called_otherwise_and_is_whole_is_used(install: Install) -> None:
    folder = install("acme")
    folder.rename(folder.with_name("odd-3.dist-info"))
    assert row("acme").status is Status.AVAILABLE


def test_the_plugin_of_another_distribution_that_is_called_like_the_folder_is_used(install: Install) -> None:
    no_equals_sign(install("acme", distribution="zeta"))
    install("zeta")
    rows = [each for each in load_plugins(["zeta"]).rows() if each.candidate.name == "zeta"]
    assert {each.status for each in rows} == {Status.BROKEN, Status.AVAILABLE}


def test_it_cannot_be_selected(install: Install) -> None:
    no_equals_sign(install("acme"))
    with pytest.raises(PluginLoadError, match=r"'acme_dist'.*its metadata cannot be read: entry_points.txt"):
        load_plugins(["acme_dist"])


def test_requirements_that_pytest_cannot_run_beside_it_are_one_line_that_names_it(
    install: Install, child_environment: Environment
) -> None:
    no_equals_sign(install("acme"))
    settings = json.dumps({"max_size_gb": 0.1})
    done = lmcache(child_environment, "plugins", "check", "memory", "--settings", settings, "-k", "missing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "; first fix what pytest stumbles over: plugin 'acme_dist' (" in done.stderr
    assert "pip install --force-reinstall acme-dist" in done.stderr
    assert done.stderr.count("\n") == 1
