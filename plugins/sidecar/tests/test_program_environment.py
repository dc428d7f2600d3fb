"""A program knows the whole configuration and no secret but those that were named."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core import ServiceContext
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.masking import Hidden
from lmcache_core.app.open_services import ContextOfServices
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_core.contracts.server_view import ServerInfo
from lmcache_sidecar.environment import VALUE_BYTES_MAX, named_secrets, program_environment

INFO = ServerInfo("node-1", "boot", "tcp://127.0.0.1:5555", "http://127.0.0.1:8080", 256, "0.0.0")
ADAPTER = {"type": "s3", "bucket": "b", "secret_access_key": "PLANTED-1", "url": "redis://u:PLANTED-2@host/0"}
OUTSIDE = {
    "PATH": "/bin",
    "LMCACHE_L2_ADAPTER": json.dumps(ADAPTER),
    "LMCACHE_HTTP_TOKEN": "PLANTED-3",
    "AWS_SECRET_ACCESS_KEY": "PLANTED-4",
    "HTTPS_PROXY": "http://me:PLANTED-5@proxy:1",
}


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OUTSIDE.items():
        monkeypatch.setenv(name, value)


def context_of(**given: Any) -> ServiceContext:
    plugins = load_plugins()
    common = SimpleNamespace(
        settings=read_settings({"l2_adapter": (ADAPTER,), **given}, plugins), plugins=plugins, hidden=Hidden()
    )
    none = cast(Any, None)
    return ContextOfServices(cast(Any, common), none, list, lambda: None, {}, none, none, dict)


def environment_of(**given: Any) -> dict[str, str]:
    context, config = context_of(**given), given.get("runtime_plugin_config", {})
    return program_environment(config, named_secrets(config, context), INFO, context)


def test_the_configuration_is_passed_without_secrets() -> None:
    variables = environment_of(runtime_plugin_config={"interval": 5}, chunk_size=512)
    assert variables["PATH"] == "/bin"
    assert json.loads(variables["LMCACHE_RUNTIME_PLUGIN_CONFIG"]) == {"interval": 5}
    server = json.loads(variables["LMCACHE_RUNTIME_PLUGIN_SERVER"])
    assert set(server) >= {*ServerSettings.model_fields, "runtime_plugin_config"}
    assert (server["chunk_size"], server["l2_adapter"][0]["bucket"]) == (512, "b")
    assert variables["LMCACHE_RUNTIME_PLUGIN_SECRETS"] == "{}"
    assert "PLANTED" not in json.dumps(variables)
    assert {name: variables[f"LMCACHE_RUNTIME_PLUGIN_{name}"] for name in ("INSTANCE_ID", "ENGINE_ENDPOINT")} == {
        "INSTANCE_ID": "node-1",
        "ENGINE_ENDPOINT": "tcp://127.0.0.1:5555",
    }
    assert variables["LMCACHE_RUNTIME_PLUGIN_HTTP_ENDPOINT"] == "http://127.0.0.1:8080"
    assert [variables[f"LMCACHE_RUNTIME_PLUGIN_{name}"] for name in ("ROLE", "WORKER_COUNT", "WORKER_ID")] == [
        "server",
        "1",
        "0",
    ]
    assert not [
        name for name in variables if name.startswith("LMCACHE_") and not name.startswith("LMCACHE_RUNTIME_PLUGIN_")
    ]


def test_exactly_the_secrets_that_are_named_are_passed() -> None:
    places = ["l2_adapter.0.secret_access_key", "environment.AWS_SECRET_ACCESS_KEY", "chunk_size"]
    variables = environment_of(runtime_plugin_config={"secrets": places})
    assert json.loads(variables["LMCACHE_RUNTIME_PLUGIN_SECRETS"]) == {
        places[0]: "PLANTED-1",
        places[1]: "PLANTED-4",
        "chunk_size": 256,
    }
    others = {name: value for name, value in variables.items() if name != "LMCACHE_RUNTIME_PLUGIN_SECRETS"}
    assert "PLANTED" not in json.dumps(others)


@pytest.mark.parametrize(
    ("secrets", "complaint"),
    [
        ("l2_adapter.0.x", "is a list of places"),
        ([1], "is a list of places"),
        (["l2_adapter.0.nothing"], "there is nothing at 'l2_adapter.0.nothing' (not at 'nothing')"),
        (["l2_adapter.7.bucket"], "(not at '7')"),
        (["model_fields"], "(not at 'model_fields')"),
        (["l2_adapter.0.bucket.0"], "(not at '0')"),
        (["environment.NOWHERE"], "(not at 'NOWHERE')"),
        (["environment"], "there is nothing at 'environment'"),
        (["l2_adapter.0"], "is neither text nor a number"),
        ([""], "there is nothing at ''"),
    ],
)
def test_a_place_without_a_value_is_named(secrets: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"--runtime-plugin-config: \"secrets\"") as refused:
        named_secrets({"secrets": secrets}, context_of())
    assert complaint in str(refused.value)


def test_a_configuration_that_no_variable_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"an environment variable takes {VALUE_BYTES_MAX}"):
        environment_of(runtime_plugin_config={"list": ["x" * 1000] * 140})
