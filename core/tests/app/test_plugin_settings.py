"""Settings that a plugin brings: flags, variables and keys, and what they make of its offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.tests.app.plugin_rows import row
from lmcache_client.errors import ConfigError
from lmcache_core.app.cli import main
from lmcache_core.app.configuration import ServerFlags, advice, read_settings
from lmcache_core.app.console.command_line import server_selection
from lmcache_core.app.masking import MASK
from lmcache_core.app.offer_specs import OfferSpec, OfferSpecs, offer_specs, operation_remedy
from lmcache_core.app.plugins.catalogue import Catalogue, KnownSetting
from lmcache_core.app.plugins.discovery import Origin, Status, discover
from lmcache_core.app.settings import ServerSettings
from lmcache_core.app.shown_settings import all_secrets, shown_settings
from lmcache_core.model.errors import PluginContractError, PluginLoadError

Install = Callable[..., Path]
SOURCE = """
    from pydantic import Field
    from lmcache_core import ConfigError, Offer, PluginSettings, SettingGroup, hookimpl

    class AcmeFlags(PluginSettings):
        acme_port: int = Field(7070, ge=0, le=65535, description="Where it listens.")
        acme_on: bool = Field(False, json_schema_extra={"flag": "acme"}, description="Use it.")
        acme_off: bool = Field(False, description="Not even by default.")
        acme_names: tuple[str, ...] = Field((), description="Some names.")
        acme_pass: str | None = Field(None, json_schema_extra={"secret": True}, description="A secret.")

    class Settings(PluginSettings):
        acme_port: int = 7070
        label: str = "none"
        names: tuple[str, ...] = ()

    def open_it(settings, *context):
        return settings

    def apply(values, given):
        if values.acme_on and values.acme_off:
            raise ConfigError("--acme and --acme-off exclude each other; leave one of them out")
        asked = {name: getattr(values, name) for name in ("acme_port",) if name in given}
        if values.acme_names:
            asked["names"] = values.acme_names
        found = {"subscriber:acme": asked} if asked or values.acme_on else {}
        return {**found, "subscriber:eager": None} if values.acme_off else found

    @hookimpl
    def lmcache_settings():
        return [SettingGroup("Acme", "acme_plugin:AcmeFlags", "acme_plugin:apply")]

    @hookimpl
    def lmcache_subscribers():
        here = "acme_plugin:open_it"
        return [Offer("acme", "a", here, "acme_plugin:Settings"), Offer("eager", "e", here, default=True)]

    @hookimpl
    def lmcache_request_modules():
        return [Offer("acme_engine", "m", "acme_plugin:open_it", operations=("cb_register_rope",))]
    """


@pytest.fixture
def acme(install: Install, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A third party's plugin, and no other beside core."""
    install("acme", SOURCE)
    hide_others(monkeypatch)
    return install


def hide_others(patch: pytest.MonkeyPatch) -> None:
    kept = [each for each in discover() if each.origin is Origin.BUILTIN or (each.distribution or "").endswith("-dist")]
    patch.setattr("lmcache_core.app.plugins.loading.discover", lambda: kept)


def configured(*arguments: str) -> tuple[ServerSettings, OfferSpecs]:
    plugins = server_selection(arguments).load(strict=True)
    settings = read_settings(ServerFlags(plugins).given(arguments), plugins)
    return settings, offer_specs(settings, plugins)


def subscribers(*arguments: str) -> dict[str, OfferSpec]:
    return {spec.name: spec for spec in configured(*arguments)[1].subscribers}


def received(*arguments: str) -> dict[str, Any]:
    settings = subscribers(*arguments)["acme"].settings
    assert settings is not None
    return settings.model_dump()


def refusal(*arguments: str) -> str:
    with pytest.raises((ConfigError, PluginLoadError, PluginContractError)) as caught:
        configured(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(
    acme: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "acme" not in subscribers()
    file = tmp_path / "a.toml"
    file.write_text("acme_port = 1\nport = 7000\n")
    assert received("--config", str(file))["acme_port"] == 1
    monkeypatch.setenv("LMCACHE_ACME_PORT", "2")
    assert received("--config", str(file))["acme_port"] == 2
    assert received("--config", str(file), "--acme-port", "3") == {"acme_port": 3, "label": "none", "names": ()}
    assert received("--acme", "--acme-names", "x", "--acme-names", "y")["names"] == ("x", "y")
    monkeypatch.setenv("lmcache_acme_names", "")
    assert received("--acme")["names"] == ()
    assert configured("--config", str(file))[0].port == 7000


def test_a_variable_reaches_the_validators_of_a_plugin_as_the_text_that_it_is(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "    class AcmeFlags(PluginSettings):\n"
    assert here in SOURCE
    parse = """
        @field_validator("acme_names", mode="before")
        @classmethod
        def _split(cls, value):
            return tuple(value.split("+")) if isinstance(value, str) else value
    """
    source = SOURCE.replace("from pydantic import Field", "from pydantic import Field, field_validator")
    install("acme", source.replace(here, here + parse))
    hide_others(monkeypatch)
    monkeypatch.setenv("LMCACHE_ACME_NAMES", '["a"]+b')
    assert received("--acme")["names"] == ('["a"]', "b")


def test_a_setting_makes_an_offer_active_or_switches_it_off(acme: Install) -> None:
    assert subscribers("--acme")["acme"].needed
    assert not subscribers("--acme")["eager"].needed
    assert set(subscribers("--acme-off")) == {"log"}
    assert set(subscribers("--acme", "--disable-observability")) == set()


def test_settings_of_both_kinds_are_merged_and_nothing_is_given_twice(acme: Install) -> None:
    given = ("--offer-settings", '{"subscriber:acme": {"label": "x"}}')
    assert received(*given) == {"acme_port": 7070, "label": "x", "names": ()}
    assert received("--acme-port", "1", *given)["label"] == "x"
    twice = refusal("--acme-port", "1", "--offer-settings", '{"subscriber:acme": {"acme_port": 2}}')
    assert twice == (
        "--acme-port and 'acme_port' of --offer-settings subscriber:acme are the same; leave one of them out"
    )


def test_what_is_wrong_is_one_line_that_names_the_flag_the_variable_or_the_key(
    acme: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("--acme-port", "70000").startswith("--acme-port is '70000': input should be less than")
    assert refusal("--acme", "--acme-off") == "--acme and --acme-off exclude each other; leave one of them out"
    assert refusal("--acme-prot", "1") == "no flag is called --acme-prot; did you mean --acme-port?"
    file = tmp_path / "a.toml"
    file.write_text("acme_prot = 1\n")
    assert "no setting is called 'acme_prot'; did you mean 'acme_port'?" in refusal("--config", str(file))
    monkeypatch.setenv("LMCACHE_ACME_PORT", "x")
    assert refusal().startswith("LMCACHE_ACME_PORT is 'x'")
    said = refusal("--acme-port", "-1", "--port", "x")
    assert "--port is 'x'" in said
    assert "--acme-port is '-1'" in said


def test_it_is_shown_like_a_setting_of_core(
    acme: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main(["server", "--help"])
    said = capsys.readouterr().out
    assert "Acme:" in said
    assert "--acme-port N" in said
    assert "--acme, --no-acme" in said
    monkeypatch.setenv("LMCACHE_ACME_PORT", "5")
    plugins = server_selection(()).load()
    rows = shown_settings(read_settings(ServerFlags(plugins).given(["--acme"]), plugins), plugins)
    given = [(row.name, row.value, row.given_by) for row in rows if row.source != "default"]
    assert given == [("acme_port", 5, "LMCACHE_ACME_PORT"), ("acme_on", True, "--acme")]
    assert main(["plugins", "show", "plugin:acme"]) == 0
    assert "--acme-port" in capsys.readouterr().out


def test_its_secrets_are_hidden(acme: Install) -> None:
    plugins = server_selection(()).load()
    settings = read_settings({"acme_pass": "hunter2-hunter2"}, plugins)
    shown = {each.name: each.value for each in shown_settings(settings, plugins)}
    assert shown["acme_pass"] == MASK
    assert "hunter2-hunter2" in all_secrets(settings, plugins)


def test_names_that_two_plugins_bring_are_those_of_neither(acme: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    acme("other", SOURCE.replace("acme_plugin", "other_plugin").replace('"acme"', '"other"').replace(":acme", ":other"))
    hide_others(monkeypatch)
    plugins = server_selection(()).load(strict=True)
    assert plugins.setting_groups() == ()
    said = plugins.warnings[-1]
    assert said.startswith(
        "setting 'acme_port' is one of plugin 'acme' (acme-dist 1.0) and plugin 'other' (other-dist 1.0)"
    )
    assert "--no-plugin acme or --no-plugin other" in said
    assert "no flag is called --acme-port" in refusal("--acme-port", "1")
    assert received("--no-plugin", "other", "--acme-port", "1")["acme_port"] == 1
    assert "setting 'acme_port' is one of" in refusal("--plugin", "acme", "--plugin", "other")


MEDDLER = """
    from pydantic import Field
    from lmcache_core import PluginSettings, SettingGroup, hookimpl

    class MeddlerFlags(PluginSettings):
        meddler_label: str | None = Field(None, description="A label for the offer of another plugin.")
        meddler_off: str | None = Field(None, description="An offer to switch off.")

    def apply(values, given):
        labels = {"subscriber:acme": {"label": values.meddler_label}} if values.meddler_label else {}
        return {**labels, **({values.meddler_off: None} if values.meddler_off else {})}

    @hookimpl
    def lmcache_settings():
        return [SettingGroup("Meddler", "meddler_plugin:MeddlerFlags", "meddler_plugin:apply")]
    """


def test_settings_of_two_plugins_for_one_offer_are_not_merged(acme: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    acme("meddler", MEDDLER)
    hide_others(monkeypatch)
    assert received("--acme-port", "1")["label"] == "none"
    assert received("--meddler-label", "x")["label"] == "x"
    both = (
        "--acme-port of plugin 'acme' (acme-dist 1.0) and {} of plugin 'meddler' (meddler-dist 1.0) both configure "
        "subscriber:acme; leave one of them out, or one plugin with --no-plugin acme or --no-plugin meddler"
    )
    assert refusal("--acme-port", "1", "--meddler-label", "x") == both.format("--meddler-label")
    assert refusal("--acme-port", "1", "--meddler-off", "subscriber:acme") == both.format("--meddler-off")
    assert "eager" not in subscribers("--acme-off", "--meddler-off", "subscriber:eager"), "both switch it off"


@pytest.mark.parametrize(("old", "new"), [("acme_port", "l1_size_gb"), ('"flag": "acme"', '"flag": "plugin"')])
def test_names_of_core_stay_core_s(install: Install, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    install("acme", SOURCE.replace(old, new))
    hide_others(monkeypatch)
    plugins = server_selection(()).load(strict=True)
    assert plugins.setting_groups() == ()
    assert any("is one of core's: leave the plugin out with --no-plugin acme" in each for each in plugins.warnings)
    assert read_settings({}, plugins).l1_size_gb == 5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("acme_plugin:AcmeFlags", "acme_plugin:Nothing", "has no attribute 'Nothing'"),
        ("acme_plugin:AcmeFlags", "acme_plugin:open_it", "is not a PluginSettings model"),
        (
            'Field(7070, ge=0, le=65535, description="Where it listens.")',
            "7070",
            "setting 'acme_port' has no description",
        ),
        ("Field(7070, ge=0", "Field(ge=0", "setting 'acme_port' has no default"),
    ],
)
def test_a_group_that_fails_to_load_does_no_harm_unless_it_is_asked_for(
    install: Install, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    install("acme", SOURCE.replace(old, new))
    hide_others(monkeypatch)
    plugins = server_selection(()).load(strict=True)
    assert plugins.setting_groups() == ()
    broken = row(plugins, "acme")
    assert broken.status is Status.BROKEN
    assert says in str(broken)
    assert says in refusal("--plugin", "acme")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("None", "lmcache_settings returned nothing; it must return a list of SettingGroup"),
        ("SettingGroup('A', 'a:b', 'a:c')", "returned a SettingGroup; it must return a list of SettingGroup"),
        ("[1]", "lmcache_settings returned int where SettingGroup belongs"),
        ("[SettingGroup('', 'a:b', 'a:c')]", "title is '', not one line of text"),
        ("[SettingGroup('A', 'nothing', 'a:c')]", "model is 'nothing', not an import string"),
    ],
)
def test_a_hook_that_returns_something_else_breaks_the_contract(install: Install, returned: str, says: str) -> None:
    source = f"""
        from lmcache_core import SettingGroup, hookimpl

        @hookimpl
        def lmcache_settings():
            return {returned}
        """
    install("acme", source)
    assert says in str(row(server_selection(()).load(), "acme"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    def apply(values, given):\n", "    def apply(values, given):\n        1 / 0\n", "ZeroDivisionError"),
        ('"subscriber:eager": None}', '"subscriber:eager": 3}', "it must return settings by 'kind:name'"),
        ('"subscriber:eager": None}', '"eager": None}', "--acme-off: 'eager' is not of the form kind:name"),
        ('"subscriber:eager": None}', '"subscriber:none": None}', "--acme-off: no subscriber is called 'none'"),
    ],
)
def test_an_apply_that_fails_names_its_plugin_or_the_flag(
    install: Install, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    install("acme", SOURCE.replace(old, new))
    hide_others(monkeypatch)
    assert says in refusal("--acme-off")


KNOWN = Catalogue({"acme": "acme-dist"}, {}, {}, {"acme_port": KnownSetting("acme-port", "acme", "acme-dist", False)})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("app.configuration", "app.plugins.loaded_plugins"):
        monkeypatch.setattr(f"lmcache_core.{module}.catalogue", lambda: KNOWN)


def test_a_setting_of_a_plugin_that_is_not_installed_stops_the_start_with_the_remedy(
    known: None, only_core: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal("--acme-port", "1") == "--acme-port belongs to acme-dist: pip install acme-dist"
    assert refusal("--acme-port=1", "--port", "0") == "--acme-port belongs to acme-dist: pip install acme-dist"
    file = tmp_path / "a.yaml"
    file.write_text("acme_port: 3\n")
    assert refusal("--config", str(file)).endswith("key 'acme_port' belongs to acme-dist: pip install acme-dist")
    monkeypatch.setenv("LMCACHE_ACME_PORT", "1")
    assert refusal() == "LMCACHE_ACME_PORT belongs to acme-dist: pip install acme-dist"


def test_a_setting_of_a_plugin_that_is_left_out_is_a_warning(
    known: None, acme: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("acme_port: 3\nno_plugins: [acme]\n")
    monkeypatch.setenv("LMCACHE_ACME_PORT", "1")
    settings = configured("--config", str(file))[0]
    blocked = "is a setting of plugin 'acme', which is blocked by --no-plugin"
    assert advice(settings, {"LMCACHE_ACME_PORT": "1"}) == [
        f"LMCACHE_ACME_PORT {blocked}",
        f"--config {file}: key 'acme_port' {blocked}",
    ]
    plugins = server_selection(["--safe-mode"]).load(strict=True)
    assert ServerFlags(plugins).given(["--acme-port", "1", "--port", "0"]) == {"port": "0"}
    assert plugins.warnings[-1] == "--acme-port is a setting of plugin 'acme', which is blocked by safe mode"
    with pytest.raises(ConfigError, match="no flag is called --nothing"):
        ServerFlags(plugins).given(["--acme-port=1", "--nothing"])


def test_the_file_chooses_plugins_before_their_settings_are_read(acme: Install, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    for text in ("no_plugins = ['acme']", "no_plugins = 'acme'", "safe_mode = true", "plugins = ['builtin']"):
        file.write_text(text)
        assert "no flag is called --acme-port" in refusal("--config", str(file), "--acme-port", "1")
    assert received("--config", str(file), "--plugin", "acme", "--acme-port", "1")["acme_port"] == 1
    file.write_text("plugins = 5\n")
    assert "key 'plugins' is '5'" in refusal("--config", str(file))


def test_an_operation_without_a_handler_has_the_remedy_of_the_offer_or_of_the_catalogue(
    acme: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = server_selection(()).load()
    assert operation_remedy(plugins, "cb_register_rope") == "start the server with --engine-type acme_engine"
    assert operation_remedy(plugins, "store") == "pip install lmcache-transfer-torch and start the server again"
    assert operation_remedy(plugins, "nothing") == ""
