"""What is in deploy/ says only what the server understands."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmcache_admin.settings import HttpFlags
from lmcache_coordinator.settings import PREFIX, CoordinatorSettings, is_loopback
from lmcache_coordinator.settings import read_settings as read_coordinator_settings
from lmcache_core.app.configuration import ServerFlags, read_settings
from lmcache_core.app.console.exit_code import ExitCode
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.settings import ServerSettings
from lmcache_observability.settings import ObservabilitySettings

DEPLOY = Path(__file__).parents[2] / "deploy"
ADDRESS = "127.0.0.1"


def manifests(name: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())}


def server_pod() -> dict[str, Any]:
    pod: dict[str, Any] = manifests("lmcache.yaml")["DaemonSet"]["spec"]["template"]["spec"]
    return pod


def settings_of(arguments: list[str], config: Path) -> ServerSettings:
    assert arguments[0] == "server"
    plugins = load_plugins()
    given = ServerFlags(plugins).given([re.sub(r"\$\(\w+\)", ADDRESS, each) for each in arguments[1:]])
    return read_settings({**given, "config": str(config)}, plugins)


def metrics_of(settings: ServerSettings) -> ObservabilitySettings:
    (values,) = [each.values for each in settings.added if isinstance(each.values, ObservabilitySettings)]
    return values


def test_the_pod_starts_a_server_that_these_flags_and_this_file_describe(tmp_path: Path) -> None:
    everything = manifests("lmcache.yaml")
    config = tmp_path / "lmcache.toml"
    config.write_text(everything["ConfigMap"]["data"]["lmcache.toml"])
    container = server_pod()["containers"][0]
    settings = settings_of(container["args"], config)
    assert container["args"][2] == "/etc/lmcache/lmcache.toml"
    assert settings.host == metrics_of(settings).prometheus_host == ADDRESS
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"engines": settings.port, "metrics": metrics_of(settings).prometheus_port}
    (http,) = [each.values for each in settings.added if isinstance(each.values, HttpFlags)]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["host"], asked["port"]) == (http.http_host, http.http_port)
    for size in (container["resources"]["requests"]["memory"], container["resources"]["limits"]["memory"]):
        assert int(size.removesuffix("Gi")) > settings.l1_size_gb, "L1 counts as memory of the container"


def test_the_pod_has_time_to_drain_and_shares_memory_with_the_engines() -> None:
    pod, engine = server_pod(), manifests("engine.yaml")["Pod"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > ServerSettings.model_fields["drain_seconds"].default
    assert pod["securityContext"]["runAsUser"] == engine["securityContext"]["runAsUser"]
    for each in (pod, engine):
        (volume,) = [volume for volume in each["volumes"] if volume["name"] == "shm"]
        assert volume["hostPath"]["path"] == "/dev/shm"
        (mount,) = [mount for mount in each["containers"][0]["volumeMounts"] if mount["name"] == "shm"]
        assert mount["mountPath"] == "/dev/shm"


def test_the_unit_knows_the_exit_code_of_a_wrong_configuration_and_its_file_is_right() -> None:
    unit = (DEPLOY / "systemd" / "lmcache.service").read_text()
    assert f"RestartPreventExitStatus={int(ExitCode.USAGE)}\n" in unit
    stop = int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0])
    assert stop > ServerSettings.model_fields["drain_seconds"].default
    config = DEPLOY / "systemd" / "lmcache.toml"
    assert (
        read_settings({"config": str(config)}, load_plugins()).l1_size_gb
        == tomllib.loads(config.read_text())["l1_size_gb"]
    )


def test_coordinators_are_two_on_one_state_and_servers_find_both_by_one_name() -> None:
    service, deployment = (manifests("coordinator.yaml")[kind]["spec"] for kind in ("Service", "Deployment"))
    (container,) = deployment["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    settings = read_coordinator_settings(arguments)
    assert command == "coordinator"
    assert (deployment["replicas"], settings.state.partition(":")[0]) == (2, "etcd")
    assert not is_loopback(settings.host)
    assert settings.token_file == f"{container['volumeMounts'][0]['mountPath']}/tokens"
    (port,) = container["ports"]
    assert port["containerPort"] == service["ports"][0]["port"] == settings.port
    assert service["clusterIP"] == "None", "a name with the address of each"
    assert service["selector"] == deployment["template"]["metadata"]["labels"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"port": port["name"], "path": "/healthz"}


def test_the_coordinators_unit_has_variables_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (DEPLOY / "systemd" / "lmcache-coordinator.service").read_text()
    assert f"RestartPreventExitStatus={int(ExitCode.USAGE)}\n" in unit
    variables = dict(each.split("=", 1) for each in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE))
    for name, value in variables.items():
        assert name.removeprefix(PREFIX).lower() in CoordinatorSettings.model_fields
        monkeypatch.setenv(name, value)
    settings = read_coordinator_settings([])
    folder = re.findall(r"^StateDirectory=(.*)$", unit, re.MULTILINE)[0]
    assert Path(settings.state).parent == Path("/var/lib") / folder


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["lmcache.service", "lmcache-coordinator.service"])
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name
    text = (DEPLOY / "systemd" / name).read_text()
    unit.write_text(text.replace("/opt/lmcache/bin/lmcache", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_has_every_plugin_of_the_repository_and_asks_the_right_port() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    root = DEPLOY.parent
    parts = re.findall(r'^ARG PARTS="(.*)"$', text, re.MULTILINE)[0].split()
    built = {str(each.parent.relative_to(root)) for part in parts for each in root.glob(f"{part}/pyproject.toml")}
    there = {str(each.parent.relative_to(root)) for each in root.glob("*/*/pyproject.toml")}
    of_others = {each for each in there if each.startswith("engines/")} | {"plugins/devkit"}
    assert built - {"plugins/devkit"} == {"core", *there} - of_others
    assert '"$part" = plugins/devkit' in text
    fields = ServerSettings.model_fields
    assert f"http://127.0.0.1:{HttpFlags.model_fields['http_port'].default}/healthcheck" in text
    metrics_port = ObservabilitySettings.model_fields["prometheus_port"].default
    assert f"EXPOSE {fields['port'].default} {HttpFlags.model_fields['http_port'].default} {metrics_port}\n" in text
