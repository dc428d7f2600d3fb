"""The flags of the admin API: who may reach it, and what a server without the plugin says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from core.tests.app.test_build import built
from lmcache_admin.service import open_admin
from lmcache_admin.settings import AdminSettings, HttpFlags, apply, is_loopback
from lmcache_core import ConfigError
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_devkit import free_port
from lmcache_devkit.service_suite import FakeServiceContext
from lmcache_http.tokens import TOKEN_VARIABLE


def applied(**given: object) -> object:
    return apply(HttpFlags.model_validate(given), frozenset(given))["service:admin"]


def test_the_api_is_on_unless_it_is_switched_off() -> None:
    assert applied() == {"host": "127.0.0.1", "port": 8080, "token_file": None}
    assert applied(http_enabled=False, http_host="0.0.0.0") is None


def test_a_host_that_others_reach_needs_a_token_or_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--http-host 0\.0\.0\.0 can be reached .*: give --http-token-file"):
        applied(http_host="0.0.0.0")
    assert applied(http_host="0.0.0.0", http_token_file=str(tmp_path / "t"))
    assert applied(http_host="0.0.0.0", http_allow_unauthenticated=True)
    monkeypatch.setenv(TOKEN_VARIABLE, "word")
    assert applied(http_host="0.0.0.0")


def test_without_a_token_it_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    given = {"http_host": "0.0.0.0", "http_port": port, "http_allow_unauthenticated": True}
    with caplog.at_level(logging.WARNING), built(http_enabled=True, **given):
        pass
    assert f"every client that reaches 0.0.0.0:{port} may use it" in caplog.text


def test_two_servers_cannot_have_one_port() -> None:
    context = FakeServiceContext(settings={"port": 9000})
    with pytest.raises(ConfigError, match="--port and --http-port are both 9000"):
        open_admin(AdminSettings(port=9000), context)


def test_a_flag_of_the_plugin_that_is_left_out_is_a_warning() -> None:
    plugins = load_plugins(["devkit", "policies"])
    assert read_settings(ServerFlags(plugins).given(["--http-port", "8081"]), plugins).added == ()
    assert any("--http-port" in line and "plugin 'admin'" in line for line in plugins.warnings)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_hosts_that_others_reach(host: str) -> None:
    assert not is_loopback(host)
