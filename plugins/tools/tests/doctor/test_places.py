"""Probes of ports, mounts and the folders of adapters."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.contracts.offer import Offer, StorageFacts
from lmcache_core.contracts.settings import PluginSettings
from lmcache_tools.doctor.folders import folders
from lmcache_tools.doctor.l1_file import l1_file
from lmcache_tools.doctor.mounts import mount_of
from lmcache_tools.doctor.ports import port_holder, ports
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from plugins.tools.tests.doctor.conftest import GIB, MakeContext


class DiskSettings(PluginSettings):
    """As those of an adapter on a disk."""

    base_path: Path
    max_capacity_gb: float = 10.0
    use_odirect: bool = False


def found_in(
    make_context: MakeContext, path: Path, kind: str = "ext4", options: str = "rw", **given: object
) -> list[ProbeResult]:
    room = given.pop("free", 100 * GIB)
    mounts = f"20 1 8:1 / / {options},relatime shared:1 - {kind} /dev/sda1 rw\n"
    context = make_context({"proc/self/mountinfo": mounts}, free=room)
    facts = StorageFacts(folders=("base_path",), capacity=("max_capacity_gb",), direct_io="use_odirect")
    offer = Offer("disk", "for tests", "a:b", storage=facts)
    spec = AdapterSpec("disk", offer, DiskSettings(base_path=path, **given))  # type: ignore[arg-type]
    return list(folders(replace(context, adapters=(spec,))))


def test_a_folder_on_a_disk(make_context: MakeContext, tmp_path: Path) -> None:
    (tmp_path / "l2").mkdir()
    found = found_in(make_context, tmp_path / "l2")
    assert [result.level for result in found] == [Level.OK, Level.OK]
    assert "ext4, writable" in found[1].text
    assert list((tmp_path / "l2").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        ({"kind": "tmpfs"}, Level.WARN, "is on tmpfs: it is memory"),
        ({"kind": "nfs4"}, Level.WARN, "is on nfs4, so its speed is that of the network"),
        ({"options": "ro"}, Level.FAIL, "is mounted read-only"),
        ({"free": 5 * GIB}, Level.WARN, "5 GiB are free, less than the 10 GiB"),
        ({"free": 2**20, "max_capacity_gb": 0.0}, Level.WARN, "only 1 MiB are free"),
        ({"max_capacity_gb": 0.0}, Level.WARN, "nothing bounds what the adapter keeps"),
    ],
)
def test_what_is_wrong_with_it(
    make_context: MakeContext, tmp_path: Path, change: dict[str, object], level: Level, says: str
) -> None:
    found = [each for each in found_in(make_context, tmp_path, **change) if says in each.text]  # type: ignore[arg-type]
    assert [each.level for each in found] == [level]


class ForeignSettings(PluginSettings):
    """As a third party calls them."""

    where: Path
    pool_mb: int = 0


class UnboundedSettings(PluginSettings):
    where: Path


@pytest.mark.parametrize(
    ("settings", "given", "says"),
    [
        (ForeignSettings, {}, 'set its "pool_mb", and give it an "eviction"'),
        (ForeignSettings, {"pool_mb": 500_000}, "lower pool_mb, unless"),
        (UnboundedSettings, {}, "see its settings: lmcache plugins show disk"),
    ],
)
def test_advice_names_the_settings_that_the_adapter_has(
    make_context: MakeContext, tmp_path: Path, settings: type[PluginSettings], given: dict[str, object], says: str
) -> None:
    mounts = "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    context = make_context({"proc/self/mountinfo": mounts}, free=100 * GIB)
    capacity = tuple(name for name in settings.model_fields if name != "where")
    offer = Offer("disk", "for tests", "a:b", storage=StorageFacts(folders=("where",), capacity=capacity))
    spec = AdapterSpec("disk", offer, settings(where=tmp_path, **given))  # type: ignore[call-arg]
    (found,) = [each for each in folders(replace(context, adapters=(spec,))) if each.level is Level.WARN]
    assert says in found.remedy


def test_a_folder_that_is_not_there_yet(make_context: MakeContext, tmp_path: Path) -> None:
    found = found_in(make_context, tmp_path / "a" / "b")
    assert found[0].level is Level.OK
    assert "does not exist yet, and can be made" in found[0].text
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    assert found_in(make_context, tmp_path / "file" / "b")[0].level is Level.FAIL
    assert found_in(make_context, tmp_path / "file")[0].level is Level.FAIL


def test_a_file_system_without_direct_io(
    make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_tools.doctor.folders._direct_io_fault", lambda file: "Invalid argument")
    asked = found_in(make_context, tmp_path, use_odirect=True)[-1]
    assert asked.level is Level.WARN
    assert "ext4 has no direct I/O (Invalid argument), so that use_odirect does nothing" in asked.text
    assert found_in(make_context, tmp_path)[-1].level is Level.OK


def test_a_file_server_with_another_clock(
    make_context: MakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_tools.doctor.folders.time.time", lambda: 1000.0)
    (late,) = [each for each in found_in(make_context, tmp_path) if "file times" in each.text]
    assert late.level is Level.WARN
    assert "ahead" in late.text


def test_the_mount_with_the_longest_path_counts(make_context: MakeContext) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /mnt rw shared:2 - nfs server:/ rw\n"
        "3 2 0:6 / /mnt/my\\040disk rw - xfs /dev/sdb rw\n"
        "a line that means nothing\n"
    )
    machine = make_context({"proc/self/mountinfo": mounts}).machine
    kinds = {path: mount_of(machine, Path(path)) for path in ("/x", "/mnt/x", "/mnt/my disk/x", "/mntx")}
    assert {path: mount and mount.kind for path, mount in kinds.items()} == {
        "/x": "ext4",
        "/mnt/x": "nfs",
        "/mnt/my disk/x": "xfs",
        "/mntx": "ext4",
    }


def test_a_free_and_a_taken_port(make_context: MakeContext) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        context = make_context(host="127.0.0.1", port=port, http_enabled=False, disable_metrics=True)
        (engine,) = ports(context)
        assert engine.level is Level.FAIL
        assert f"127.0.0.1:{port} is taken" in engine.text
        assert engine.fix == f"--port {port + 1}"
    assert next(ports(context)).level is Level.OK


def test_who_has_a_port_is_named(make_context: MakeContext, tmp_path: Path) -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:15B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0\n"
        "   1: 0100007F:15B3 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0 100 0 0 10 0\n"
    )
    context = make_context({"proc/net/tcp": table, "proc/77/comm": "lmcache\n", "proc/77/fd/.keep": ""})
    holder = tmp_path / "root/proc/77/fd/5"
    os.symlink("socket:[4242]", holder)
    (tmp_path / "root/proc/77/fd/.keep").unlink()
    assert port_holder(context.machine, 5555) == "lmcache (process 77)"
    assert port_holder(context.machine, 5556) is None
    holder.unlink()
    assert port_holder(context.machine, 5555) is None


def test_a_port_that_this_user_may_not_have_or_that_is_elsewhere(make_context: MakeContext) -> None:
    (engine, *_) = ports(make_context(host="203.0.113.1", port=5555, http_enabled=False, disable_metrics=True))
    assert engine.level is Level.FAIL
    assert "cannot be bound: Cannot assign requested address" in engine.text


@pytest.mark.parametrize(
    ("kind", "free", "level", "says"),
    [
        ("ext4", 9 * GIB, Level.OK, "(ext4) has room for L1"),
        ("ext4", 5 * GIB, Level.FAIL, "5 GiB free, less than the 8 GiB of L1: it will not start"),
        ("tmpfs", 9 * GIB, Level.WARN, "is on tmpfs, which is memory"),
        ("nfs4", 9 * GIB, Level.WARN, "is on nfs4: a stall there stalls requests"),
        ("btrfs", 9 * GIB, Level.WARN, "copies what is overwritten"),
    ],
)
def test_a_disk_for_l1(
    make_context: MakeContext, tmp_path: Path, kind: str, free: int, level: Level, says: str
) -> None:
    mounts = {"proc/self/mountinfo": f"20 1 8:1 / / rw,relatime shared:1 - {kind} /dev/sda1 rw\n"}
    for place in (tmp_path, tmp_path / "slab"):
        [found] = l1_file(make_context(mounts, free=free, l1_size_gb=8, gds_l1_path=str(place)))
        assert found.level is level
        assert says in found.text
    assert not (tmp_path / "slab").exists(), "a look makes nothing"


def test_a_file_of_a_killed_server_is_room_for_l1(make_context: MakeContext, tmp_path: Path) -> None:
    mounts = {"proc/self/mountinfo": "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"}
    with (tmp_path / "slab").open("wb") as file:
        file.truncate(4 * GIB)
    [found] = l1_file(make_context(mounts, free=5 * GIB, l1_size_gb=8, gds_l1_path=str(tmp_path / "slab")))
    assert found.level is Level.OK


def test_no_folder_for_l1(make_context: MakeContext, tmp_path: Path) -> None:
    [found] = l1_file(make_context(gds_l1_path=str(tmp_path / "missing" / "slab")))
    assert (found.level, found.fix) == (Level.FAIL, f"mkdir -p {tmp_path / 'missing'}")
    assert list(l1_file(make_context())) == []
