"""Configurations as they are in use with the public package: exit code, what is said, and the result starts.

Keys and values are those of its guides; what they need beside this machine (Redis, S3, a Mooncake master) is not started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from demo.server_process import ServerProcess
from lmcache_core import open_local
from lmcache_engine import LMCacheEngineConfig
from lmcache_engine.config import read_file
from lmcache_engine.migrate_config import IMPOSSIBLE, OK, migrated


class Example(NamedTuple):
    text: str
    code: int
    outcomes: dict[str, str]
    """Of keys that are worth a look."""
    settings: dict[str, Any]
    """Some of the settings that follow."""
    starts: bool = False
    """With nothing beside this machine."""


EXAMPLES = {
    "memory of the host": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 0.02\n",
        OK,
        {"chunk_size": "mapped", "local_cpu": "mapped", "max_local_cpu_size": "mapped"},
        {"chunk_size": 256, "l1_size_gb": 0.04, "l2_adapter": []},
        starts=True,
    ),
    "a local disk, past the page cache": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 0.02\nlocal_disk: file://FOLDER/local_disk/\n"
        "max_local_disk_size: 1.0\nextra_config: {use_odirect: true}\n",
        OK,
        {"local_disk": "mapped", "extra_config": "used"},
        {"l2_prefetch_policy": "retain"},
        starts=True,
    ),
    "a local disk without host memory": Example(
        "local_cpu: false\nmax_local_cpu_size: 0.02\nlocal_disk: FOLDER/kv\nmax_local_disk_size: 0.5\ncache_policy: LFU\n",
        OK,
        {"local_cpu": "mapped", "cache_policy": "mapped"},
        {"l2_store_policy": "skip_l1", "eviction_policy": "LFU"},
        starts=True,
    ),
    "folders that machines share": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 0.02\nremote_url: fs://localhost:8000FOLDER/shared\n"
        "remote_serde: naive\n",
        OK,
        {"remote_url": "mapped", "remote_serde": "used"},
        {},
        starts=True,
    ),
    "Redis": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 5.0\nremote_url: redis://user:hidden@cache.example:6379\n"
        "remote_serde: naive\n",
        OK,
        {"remote_url": "mapped"},
        {"l2_adapter": [{"type": "redis", "url": "redis://***@cache.example:6379"}]},
    ),
    "S3": Example(
        "local_cpu: false\nmax_local_cpu_size: 10\nremote_url: s3://kv.s3.us-west-2.amazonaws.com\nremote_serde: naive\n"
        "blocking_timeout_secs: 10\nextra_config: {s3_num_io_threads: 64, s3_prefer_http2: true, s3_region: us-west-2, "
        "s3_enable_s3express: false, save_chunk_meta: false, s3_file_prefix: test, aws_secret_access_key: hidden}\n",
        OK,
        {"remote_url": "mapped", "blocking_timeout_secs": "mapped"},
        {"lookup_timeout_seconds": 10.0, "l2_store_policy": "skip_l1"},
    ),
    "Mooncake": Example(
        "chunk_size: 256\nremote_url: mooncakestore://10.0.0.1:50051/\nremote_serde: naive\nlocal_cpu: false\n"
        "max_local_cpu_size: 40\nnuma_mode: auto\nextra_config: {use_exists_sync: true, local_hostname: node-a, "
        "metadata_server: 'http://10.0.0.1:8080/metadata', protocol: rdma, device_name: mlx5_0, "
        "global_segment_size: 21474836480, local_buffer_size: 0, save_chunk_meta: false}\n",
        OK,
        {"numa_mode": "mapped"},
        {"l1_numa": "local"},
    ),
    "hand-off from prefill to decode": Example(
        "local_cpu: false\nmax_local_cpu_size: 0.1\nenable_pd: true\ntransfer_channel: nixl\npd_role: receiver\n"
        "pd_peer_host: localhost\npd_peer_init_port: 7300\npd_peer_alloc_port: 7400\npd_buffer_size: 2147483648\n"
        "pd_buffer_device: cuda\nnixl_backends: [UCX]\n",
        IMPOSSIBLE,
        {"enable_pd": "mapped", "pd_role": "mapped", "nixl_backends": "no effect", "": "impossible"},
        {},
    ),
    "hand-off by old names": Example(
        "local_cpu: false\nmax_local_cpu_size: 0.1\nenable_xpyd: true\nnixl_role: sender\nnixl_proxy_host: localhost\n"
        "nixl_proxy_port: 7500\nnixl_buffer_size: 1073741824\n",
        IMPOSSIBLE,
        {"enable_xpyd": "mapped", "nixl_role": "mapped", "": "impossible"},
        {},
    ),
    "peers and a controller": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 5\nenable_async_loading: true\nenable_p2p: true\n"
        "p2p_host: localhost\np2p_init_ports: [8200]\np2p_lookup_ports: [8201]\ntransfer_channel: nixl\n"
        "enable_controller: true\nlmcache_instance_id: instance_1\ncontroller_pull_url: localhost:8300\n"
        "controller_reply_url: localhost:8400\n"
        "lmcache_worker_ports: [8500]\n",
        IMPOSSIBLE,
        {"enable_p2p": "mapped", "enable_controller": "impossible", "lmcache_instance_id": "mapped", "": "impossible"},
        {"instance_id": "instance_1"},
    ),
    "peers, with a coordinator in place of the controller": Example(
        "chunk_size: 256\nmax_local_cpu_size: 5\nenable_p2p: true\np2p_host: localhost\np2p_init_ports: [8200]\n"
        "p2p_lookup_ports: [8201]\ntransfer_channel: nixl\nlmcache_instance_id: instance_1\n"
        "extra_config: {server: {coordinator_url: 'http://127.0.0.1:9300'}}\n",
        OK,
        {"enable_p2p": "mapped", "p2p_init_ports": "mapped", "p2p_lookup_ports": "no effect"},
        {"instance_id": "instance_1", "p2p_advertise_url": "tcp://localhost:8200"},
    ),
    "blending": Example(
        "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 5\nuse_layerwise: true\nenable_blending: true\n"
        "blend_special_str: ' # # '\nblend_check_layers: 1\nblend_recompute_ratios: 0.15\n",
        OK,
        {"enable_blending": "mapped", "use_layerwise": "used", "blend_check_layers": "mapped"},
        {"chunk_size": 256, "engine_type": ["blend"]},
    ),
    "files of a GPU": Example(
        "local_cpu: false\nmax_local_cpu_size: 5\ngds_path: /mnt/nvme/cache\ngds_buffer_size: 8192\n",
        IMPOSSIBLE,
        {"gds_path": "impossible", "gds_buffer_size": "no effect"},
        {},
    ),
    "a key that is not known": Example(
        "chunk_sise: 256\nmax_local_cpu_size: 0.02\n", IMPOSSIBLE, {"chunk_sise": "impossible"}, {"l1_size_gb": 0.04}
    ),
}


def linker_of(arguments: Sequence[str]) -> Any:
    """What lmcache-sglang is given."""
    about = json.loads(arguments[-1])
    assert arguments[-2] == "--unified-cache-external-linker-config"
    assert (about["linker"], about["linker_module_path"]) == ("NodeLinker", "lmcache_sglang")
    return about["linker_extra_config"]


@pytest.mark.parametrize("engine", [[], ["--engine", "sglang"]])
def test_the_file_of_sglang_gives_its_arguments_and_those_of_our_linker(
    engine: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sglang.yaml"
    file.write_text(
        "mp_host: tcp://10.0.0.7\nmp_port: 6001\nchunk_size: 128\nmax_local_cpu_size: 0.02\n"
        "extra_config: {lmcache.mp.heartbeat_interval: 4, lmcache.mp.mq_timeout: 60, server: {port: 7000}}\n"
    )
    assert migrated([str(file), *engine, "--format", "json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["stock_engine_arguments"] == ["--enable-lmcache", "--lmcache-config-file", str(file)]
    assert linker_of(found["engine_arguments"]) == {"url": "tcp://10.0.0.7:6001", "heartbeat_seconds": 4}
    settings = {"host": "10.0.0.7", "port": 6001, "chunk_size": 128, "l1_size_gb": 0.02}
    assert {name: found["settings"][name] for name in settings} == settings
    outcomes = {row["key"]: row["outcome"] for row in found["keys"]}
    assert outcomes == {
        "mp_host": "mapped",
        "mp_port": "mapped",
        "chunk_size": "mapped",
        "max_local_cpu_size": "mapped",
        "extra_config": "used",
        "lmcache.mp.heartbeat_interval": "mapped",
        "lmcache.mp.mq_timeout": "no effect",
    }


def test_keys_of_sglangs_former_cache_give_a_server_and_what_its_client_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text("chunk_size: 512\nlocal_cpu: true\nmax_local_cpu_size: 10\nuse_layerwise: true\nmp_host:\n")
    assert migrated([str(file), "--engine", "sglang"], {}) == OK
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["chunk_size"] == 512
    assert "#   --enable-lmcache --lmcache-config-file lmcache.yaml\n" in text
    assert 'lmcache.yaml has {"mp_host": "127.0.0.1", "mp_port": 5555}' in text
    (line,) = [each for each in text.splitlines() if "NodeLinker" in each]
    assert linker_of(shlex.split(line.removeprefix("#"))) == {"url": "tcp://127.0.0.1:5555"}
    assert "--kv-transfer-config" not in text


def test_a_server_starts_where_the_file_of_sglang_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ServerProcess(["--config", str(tmp_path / "server.yaml")], tmp_path / "log")
    (tmp_path / "sglang.yaml").write_text(f"mp_host: 127.0.0.1\nmp_port: {server.port}\nmax_local_cpu_size: 0.02\n")
    assert migrated([str(tmp_path / "sglang.yaml")], {}) == OK
    (tmp_path / "server.yaml").write_text(capsys.readouterr().out)
    with server:
        assert server.status()["healthy"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mp_host: ipc:///run/socket", "'mp_host': expected a host of TCP"),
        ("mp_host: tcp://me:hidden@host", "'mp_host': expected a host of TCP"),
        ("mp_host: me:hidden@host", "'mp_host': expected a host of TCP"),
        ("mp_host: [hidden]", "'mp_host': expected a host of TCP"),
        ("mp_host: h\nmp_port: 70000", "'mp_port' is 70000: expected a port, 1 to 65535"),
        ("mp_host: h\nmp_port: many", "'mp_port' is 'many': expected a whole number"),
    ],
)
def test_a_server_that_cannot_be_meant_is_impossible(
    given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sglang.yaml"
    file.write_text(given)
    assert migrated([str(file)], {}) == IMPOSSIBLE
    text = capsys.readouterr().out
    assert said in text
    assert "hidden" not in text


def test_a_cache_in_sglangs_process_reads_the_old_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text(
        "chunk_size: 512\nmax_local_cpu_size: 0.02\nuse_layerwise: true\nmin_retrieve_tokens: 0\n"
        "extra_config: {lmcache.mp.heartbeat_interval: 4}\n"
    )
    assert migrated([str(file), "--engine", "sglang", "--to", "in-process", "--format", "json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    linker = linker_of(found["engine_arguments"])
    assert linker == {"in_process": True, "config_file": str(file), "heartbeat_seconds": 4}
    assert not found["stock_engine_arguments"]
    assert "port" not in found["settings"]
    outcomes = {row["key"]: row["outcome"] for row in found["keys"]}
    assert (outcomes["chunk_size"], outcomes["min_retrieve_tokens"]) == ("no effect", "used")
    assert migrated(["--engine", "sglang", "--to", "in-process"], {"LMCACHE_CONFIG_FILE": str(file)}) == OK
    text = capsys.readouterr().out
    assert "# arguments of SGLang with lmcache-sglang\n" in text
    assert "--kv-transfer-config" not in text
    assert (
        migrated(["--engine", "sglang", "--to", "in-process", "--format", "json"], {"LMCACHE_CHUNK_SIZE": "64"}) == OK
    )
    assert linker_of(json.loads(capsys.readouterr().out)["engine_arguments"]) == {"in_process": True}, "no file is read"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mp_host: h\n", "lmcache migrate-config"),
        ("enable_blending: true\n", "vLLM's connector blends, and SGLang's linker does not"),
        ("enable_xpyd: true\npd_role: sender\n", "SGLang does so itself, by --disaggregation-mode"),
    ],
)
def test_what_a_cache_in_sglangs_process_does_not_do_is_impossible(
    given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v1.yaml"
    file.write_text(given)
    assert migrated([str(file), "--to", "in-process", "--engine", "sglang"], {}) == IMPOSSIBLE
    assert said in capsys.readouterr().out


def written(example: Example, folder: Path) -> Path:
    file = folder / "v1.yaml"
    file.write_text(example.text.replace("FOLDER", str(folder)))
    return file


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_an_example_is_translated_with_a_line_for_each_key(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(example, tmp_path)
    assert migrated([str(file), "--workers", "2", "--format", "json"], {}) == example.code
    text = capsys.readouterr().out
    found = json.loads(text)
    outcomes = {row["key"]: row["outcome"] for row in found["keys"]}
    assert set(yaml.safe_load(file.read_text())) <= set(outcomes)
    assert {key: outcomes[key] for key in example.outcomes} == example.outcomes
    assert {key: found["settings"].get(key) for key in example.settings} == example.settings
    assert "hidden" not in text
    assert all(row["text"] for row in found["keys"])


@pytest.mark.parametrize(
    "example",
    [each for each in EXAMPLES.values() if each.starts],
    ids=[key for key, each in EXAMPLES.items() if each.starts],
)
def test_a_server_starts_with_what_was_written(
    example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(example, tmp_path)
    assert migrated([str(file), "--workers", "2"], {}) == OK
    (tmp_path / "server.yaml").write_text(capsys.readouterr().out)  # lines that are not settings are comments
    with ServerProcess(["--config", str(tmp_path / "server.yaml")], tmp_path / "log") as server:
        assert server.running
        assert server.status()["healthy"]


@pytest.mark.parametrize(
    "example",
    [each for each in EXAMPLES.values() if each.starts],
    ids=[key for key, each in EXAMPLES.items() if each.starts],
)
def test_the_same_file_opens_an_engine(example: Example, tmp_path: Path) -> None:
    cache = open_local(LMCacheEngineConfig(read_file(written(example, tmp_path))).server)
    assert cache.healthy
    assert cache.close(10.0)
