"""What becomes of each key of the public package's configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmcache_client import ConfigError
from lmcache_core import open_local
from lmcache_engine import CacheEngineKey, LayerCacheEngineKey, LMCacheEngineConfig, peers
from lmcache_engine.migrate_config import key_table, migrate, migrated

ROOT = Path(__file__).parents[3]
COORDINATOR = {"coordinator_url": "http://127.0.0.1:9300"}
PD: dict[str, Any] = {
    "enable_pd": True,
    "pd_role": "receiver",
    "pd_peer_host": "10.0.0.3",
    "pd_peer_init_port": [7300, 7301],
    "extra_config": {"server": COORDINATOR},
}


def test_variables_are_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text("chunk_size: 128\nmax_local_cpu_size: 2.5\ncache_policy: LFU\n")
    environment = {"LMCACHE_CONFIG_FILE": str(file), "LMCACHE_CHUNK_SIZE": "64", "LMCACHE_OTHER": "x", "HOME": "/"}
    config = LMCacheEngineConfig.from_env(environment, cache_policy="FIFO")
    assert (config.chunk_size, config.max_local_cpu_size, config.cache_policy) == (64, 2.5, "FIFO")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunk_sise": 1}, "did you mean 'chunk_size'"),
        ({"chunk_size": 0}, "'chunk_size' is 0"),
        ({"chunk_size": "many"}, "expected a whole number"),
        ({"max_local_cpu_size": float("nan")}, "'max_local_cpu_size' is nan"),
        ({"max_local_cpu_size": -1}, "not negative"),
        ({"max_local_cpu_size": 0, "local_cpu": False}, "every tier needs memory"),
        ({"local_cpu": "perhaps"}, "true or false"),
        ({"lazy_memory_initial_ratio": 2}, "a share, 0 to 1"),
        ({"remote_serde": "cachegen"}, "int8, int4"),
        ({"pd_role": "decoder"}, "'pd_role' is 'decoder': expected one of sender, producer, receiver, both"),
        ({"extra_config": "[]"}, "keys and values"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LMCacheEngineConfig(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"remote_url": "lm://:1"}, "expected lm://HOST:PORT"),
        ({"remote_url": "infinistore://host:port"}, "expected infinistore://HOST:PORT"),
        ({"remote_url": "nope"}, "understood are"),
        ({"remote_url": "s3://kvcache"}, "no s3_region"),
        ({"remote_url": "mooncake://master:1"}, "local_hostname"),
        ({"remote_url": "mooncake://", "extra_config": {"local_hostname": "me"}}, "host:port of its master"),
        ({"cache_policy": "best"}, "one of LRU, LFU, FIFO, MRU"),
        ({"retrieve_locations": ["LocalDiskBackend"]}, "lookups ask LocalCPUBackend alone, or all of LocalCPUBackend"),
        ({"retrieve_locations": ["Disk"]}, "no tier is called 'Disk' here"),
        (
            {"store_location": "LocalDiskBackend"},
            "no tier is called 'LocalDiskBackend' here; there are LocalCPUBackend",
        ),
        (
            {
                "store_location": "RemoteBackend",
                "remote_url": "file:///a",
                "local_disk": "/b",
                "max_local_disk_size": 1,
            },
            "the only one below memory",
        ),
        ({"extra_config": {"server": 3}}, "settings of `lmcache server`"),
        ({"enable_pd": True}, "'pd_role' is missing: sender"),
        (
            {"enable_xpyd": True, "nixl_role": "sender"},
            "'enable_pd' is True, and peers find each other by a coordinator",
        ),
        ({"enable_p2p": True, "extra_config": {"server": COORDINATOR}}, "give 'p2p_host' and 'p2p_init_ports'"),
        ({**PD, "pd_peer_host": None}, "give 'pd_peer_host' and 'pd_peer_init_port' or 'p2p_host' and"),
        ({**PD, "pd_peer_init_port": []}, "'pd_peer_init_port' has 0 ports, and worker 0 needs one of its own"),
        ({"retrieve_locations": ["PDBackend"]}, "no tier|lookups ask LocalCPUBackend alone"),
    ],
)
def test_what_has_no_setting_here_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _ = LMCacheEngineConfig(given).server


def test_a_folder_of_the_public_package_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    with pytest.raises(ConfigError, match="name another folder"):
        _ = LMCacheEngineConfig({"local_disk": str(tmp_path), "max_local_disk_size": 1}).server


def test_old_names_and_keys_without_effect_are_said_once() -> None:
    config = LMCacheEngineConfig({"nixl_proxy_port": 1, "py_enable_gc": False})
    assert [line.split(":")[0] for line in config.warnings] == [
        "'nixl_proxy_port' is an old name; it is called 'pd_proxy_port'",
        "'pd_proxy_port' has no effect",
        "'py_enable_gc' has no effect",
    ]


def test_peers_are_settings_of_the_server() -> None:
    p2p = {
        "enable_p2p": True,
        "p2p_host": "10.0.0.3",
        "p2p_init_ports": "8200, 8201",
        "extra_config": PD["extra_config"],
    }
    config = LMCacheEngineConfig(p2p)
    found = config.server
    assert (found["p2p_advertise_url"], found["coordinator_url"]) == ("tcp://10.0.0.3:8200", "http://127.0.0.1:9300")
    assert {"p2p", "fleet_member"} <= {*found["plugins"]}
    assert found["l2_prefetch_policy"] == "retain", "what a peer had is had here then"
    assert (config.role, config.save_unfull_chunk) == ("none", False)
    other = LMCacheEngineConfig({**p2p, "lmcache_instance_id": "here"}).server_of(1)
    assert (other["p2p_advertise_url"], other["instance_id"]) == ("tcp://10.0.0.3:8201", "here-1")


@pytest.mark.parametrize("role", ["sender", "producer", "receiver", "both"])
def test_a_role_says_what_is_kept(role: str) -> None:
    config = LMCacheEngineConfig({**PD, "pd_role": role, "max_local_cpu_size": 0, "pd_buffer_size": 2**29})
    found = config.server
    assert config.role == {"sender": "producer"}.get(role, role)
    assert config.save_unfull_chunk, "the whole prompt is handed over"
    assert found["l1_size_gb"] == 0.5
    is_kept = found.get("l2_prefetch_policy") == "retain"
    assert is_kept == (config.role == "producer"), "a receiver removes what it has read"


def test_what_peers_read_is_not_moved_out_of_memory(tmp_path: Path) -> None:
    given = {**PD, "pd_role": "sender", "local_cpu": False, "local_disk": str(tmp_path), "max_local_disk_size": 1}
    assert "l2_store_policy" not in LMCacheEngineConfig(given).server


def test_memory_alone_is_not_the_memory_of_peers() -> None:
    config = LMCacheEngineConfig({**PD, "retrieve_locations": ["LocalCPUBackend"]})
    assert config.asks_memory_alone()
    assert not LMCacheEngineConfig(PD).asks_memory_alone(["PDBackend", "LocalCPUBackend"])


def test_without_the_plugins_the_key_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="'enable_pd' is True: pip install lmcache-p2p lmcache-fleet-member"):
        _ = LMCacheEngineConfig(PD).server


def test_a_role_without_a_hand_off_is_said() -> None:
    assert LMCacheEngineConfig({"pd_role": "sender"}).warnings == ["'pd_role' has no effect without 'enable_pd'"]


@pytest.mark.parametrize("policy", ["LRU", "lfu", "FIFO", "MRU"])
def test_the_settings_that_follow_open_a_cache(policy: str, tmp_path: Path) -> None:
    given = {
        "cache_policy": policy,
        "max_local_cpu_size": 0.01,
        "local_disk": str(tmp_path),
        "max_local_disk_size": 0.1,
    }
    cache = open_local(LMCacheEngineConfig(given).server)
    try:
        assert cache.status()["policies"]
    finally:
        cache.close(1.0)


def test_a_configuration_is_migrated_with_a_line_for_each_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text("chunk_size: 128\nmax_local_cpu_size: 2\nremote_url: redis://me:hidden@host:6379\n")
    assert migrated([str(file), "--workers", "4", "--format", "json"], {}) == 0
    written = capsys.readouterr().out
    found = json.loads(written)
    assert found["settings"]["l1_size_gb"] == 8
    assert [row["outcome"] for row in found["keys"]] == ["mapped"] * 3
    assert "LMCacheNodeConnector" in written
    assert "hidden" not in written
    assert migrated([str(file), "--to", "in-process"], {"LMCACHE_ENABLE_P2P": "true"}) == 1
    said = capsys.readouterr().out
    assert "lmcache-p2p" in said
    assert '"kv_connector_extra_config": {"lmcache.in_process": true}' in said
    file.write_text("[")
    assert migrated([str(file)], {}) == 2
    assert migrated([str(tmp_path / "none.yaml")], {}) == 2
    with pytest.raises(ConfigError, match="--workers must be 1 or more"):
        migrated(["--workers", "0"], {})


_BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (_BOMB + "chunk_size: *a39\n", "more than 10000 values"),
        ("extra_config: &a {x: *a}\n", "more than 10000 values"),
        ("#" * 2**20 + "\n", "longer than 1048576 characters"),
        ("extra_config: " + "[" * 5000 + "]" * 5000, "maximum recursion depth"),
        ("chunk_size: 2024-13-45\n", "month must be in"),
        ("chunk_size: \udcff\n", "can't decode byte 0xff"),
        ("chunk_size: 'hidden\n", "while scanning a quoted scalar"),
        ("- hidden\n", "expected keys and values"),
        (None, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_ends_with_2_and_one_line(
    text: str | None, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "v1.yaml"
    file.mkdir() if text is None else file.write_text(text, encoding="utf-8", errors="surrogateescape")
    assert migrated([str(file)], {}) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert (captured.out, captured.err.count("\n"), "hidden" in captured.err) == ("", 1, False)


@pytest.mark.parametrize(
    "given",
    [
        {"remote_url": "redis://me:hid/den@host:6379"},
        {"remote_url": "redis://me:hid@den@host:6379"},
        {"remote_url": "redis://host:6379?password=hidden"},
        {"remote_url": "nope://me:hid/den@host"},
        {"remote_url": "lm://me:hid/den@host"},
        {"remote_url": ["redis://me:" + "hidden" * 20 + "@host"]},
        {"extra_config": '{"aws_secret_access_key": "hidden"'},
        {"extra_config": {"server": {"http_token": "hidden"}}},
    ],
)
def test_no_secret_is_shown(given: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text(json.dumps(given))
    for form in ("text", "json", "yaml"):
        migrated([str(file), "--format", form], {})
        captured = capsys.readouterr()
        assert not [part for part in ("hid/", "hid@", "den@", "hidden") if part in captured.out + captured.err]


def test_the_command_is_a_word_of_lmcache(tmp_path: Path) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text("chunk_size: 128\nenable_pd: true\n")
    command = [sys.executable, "-c", "from lmcache_core.app.cli import main; raise SystemExit(main())"]
    done = subprocess.run(
        [*command, "migrate-config", str(file)], capture_output=True, text=True, timeout=60, env={"PATH": ""}
    )
    assert done.returncode == 1, done.stderr
    assert "chunk_size: 128" in done.stdout
    assert "'pd_role' is missing" in done.stdout


def test_a_server_that_looks_for_plugins_imports_nothing_of_an_engine() -> None:
    script = (
        "import sys, lmcache_engine.plugin; print([each for each in ('numpy', 'torch', 'yaml') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("url", "extra", "adapter"),
    [
        (
            "s3://kvcache",
            {"s3_region": "eu-west-1", "other": 1},
            {"s3_endpoint": "s3://kvcache", "s3_region": "eu-west-1"},
        ),
        (
            "s3://kvcache.s3.eu-west-1.amazonaws.com/",
            {"s3_region": "eu-west-1", "s3_file_prefix": "a/b"},
            {"s3_endpoint": "kvcache.s3.eu-west-1.amazonaws.com", "s3_region": "eu-west-1", "prefix": "a/b/"},
        ),
        (
            "s3://minio:9000/kvcache",
            {"s3_region": "x", "disable_tls": True},
            {"s3_endpoint": "minio:9000/kvcache", "s3_region": "x", "disable_tls": True},
        ),
        (
            "mooncakestore://master:50051/?x=1",
            {"local_hostname": "me", "protocol": "tcp", "device_name": "mlx5_0"},
            {
                "master_server_addr": "master:50051",
                "local_hostname": "me",
                "protocol": "tcp",
                "rdma_devices": "mlx5_0",
            },
        ),
    ],
)
def test_remote_urls_name_adapters_with_settings_that_these_have(
    url: str, extra: dict[str, Any], adapter: dict[str, Any]
) -> None:
    settings = LMCacheEngineConfig({"remote_url": url, "extra_config": extra}).server
    (found,) = settings["l2_adapter"]
    kind = found.pop("type")
    assert (kind, found) == ("s3" if url.startswith("s3") else "mooncake_store", adapter)
    assert kind in settings["plugins"]
    module = "lmcache_l2_s3.config" if kind == "s3" else "lmcache_l2_mooncake.config"
    model = pytest.importorskip(module)
    getattr(model, "S3Settings" if kind == "s3" else "MooncakeSettings").model_validate(found)


@pytest.mark.parametrize(
    ("url", "adapter", "model"),
    [
        ("lm://store:65432", {"host": "store", "port": 65432}, "lmcache_l2_lm.config:LmSettings"),
        ("lm://[::1]", {"host": "::1"}, "lmcache_l2_lm.config:LmSettings"),
        (
            "infinistore://10.0.0.7:12345/?device=mlx5_1",
            {"host": "10.0.0.7", "port": 12345, "dev_name": "mlx5_1"},
            "lmcache_l2_infinistore.config:InfinistoreSettings",
        ),
    ],
)
def test_stores_of_the_public_package_are_adapters(url: str, adapter: dict[str, Any], model: str) -> None:
    settings = LMCacheEngineConfig({"remote_url": url}).server
    (found,) = settings["l2_adapter"]
    kind = found.pop("type")
    assert kind == url.partition(":")[0]
    assert kind in settings["plugins"]
    assert found == adapter
    module, _, name = model.partition(":")
    getattr(pytest.importorskip(module), name).model_validate(found)


def test_what_is_impossible_is_left_out_of_the_settings() -> None:
    found = migrate({"enable_xpyd": True, "chunk_size": 512})
    assert not found.is_possible
    assert found.settings["chunk_size"] == 512


def test_engines_of_a_server_are_started_with_their_part() -> None:
    (_, text) = migrate(PD | {"enable_blending": True, "blend_check_layers": 1}).engine_arguments
    extra = json.loads(text)["kv_connector_extra_config"]
    assert extra["lmcache.pd_role"] == "receiver"
    assert (extra["lmcache.blend"], extra["lmcache.blend_check_layers"]) == ("all", [1])
    assert "lmcache.blend_thresholds" not in extra
    (_, text) = migrate(PD, "in-process").engine_arguments
    assert json.loads(text)["kv_connector_extra_config"] == {"lmcache.in_process": True}, "the rest is in the file"


def test_the_page_has_the_table_of_all_keys() -> None:
    page = (ROOT / "docs" / "engines" / "migration.md").read_text()
    assert key_table() in page, 'python -c "from lmcache_engine.migrate_config import key_table; print(key_table())"'


def test_a_key_is_read_back_from_its_text() -> None:
    configs = {"lmcache.tag.user": "a", "lmcache.tag.b": "2", "other": 1}
    key = CacheEngineKey("org@model", 2, 1, bytes(range(32)), "torch.bfloat16", configs)
    assert key.to_string() == f"org@model@2@1@{bytes(range(32)).hex()}@bfloat16@b%2@user%a"
    assert CacheEngineKey.from_string(key.to_string()) == key
    assert hash(key) == hash(CacheEngineKey("org@model", 2, 1, bytes(range(32)), "bfloat16", configs))
    layers = key.split_layers(3)
    assert [each.layer_id for each in layers] == [0, 1, 2]
    assert [LayerCacheEngineKey.from_string(each.to_string()) for each in layers] == layers
    for text in ("", "a@b", "m@1@0@zz@f@", "m@x@0@00@f"):
        with pytest.raises(ValueError, match="not a key"):
            CacheEngineKey.from_string(text)
