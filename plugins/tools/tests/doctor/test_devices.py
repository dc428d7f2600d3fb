"""Probes of devices, and of files that replace one."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_core.contracts.offer import Offer, StorageFacts
from lmcache_core.contracts.settings import PluginSettings
from lmcache_tools.doctor.adapter_places import adapter_devices, adapter_folders
from lmcache_tools.doctor.devices import devices
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from plugins.tools.tests.doctor.conftest import MakeContext

MIB = 2**20
FACTS = StorageFacts(devices=("device_path",), capacity=("capacity_bytes", "max_dax_size_gb"), direct_io="use_odirect")
OFFER = Offer("slots", "for tests", "a:b", storage=FACTS)


class SlotSettings(PluginSettings):
    """As those of an adapter on devices."""

    device_path: Path | tuple[Path, ...]
    capacity_bytes: int = 0
    max_dax_size_gb: float = 0.0
    use_odirect: bool = True


def found_in(make_context: MakeContext, *paths: Path, kind: str = "ext4", **given: object) -> list[ProbeResult]:
    mounts = f"20 1 8:1 / / rw,relatime shared:1 - {kind} /dev/sda1 rw\n"
    settings = SlotSettings(device_path=paths if len(paths) > 1 else paths[0], **given)  # type: ignore[arg-type]
    context = make_context({"proc/self/mountinfo": mounts})
    return list(devices(replace(context, adapters=(AdapterSpec("slots", OFFER, settings),))))


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A file of one MiB, all of it allocated."""
    path = tmp_path / "device"
    path.write_bytes(b"x" * MIB)
    return path


def test_a_device_is_not_a_folder(device: Path) -> None:
    spec = AdapterSpec("slots", OFFER, SlotSettings(device_path=device))
    assert adapter_devices(spec) == [device]
    assert adapter_folders(spec) == []
    assert adapter_devices(structs.replace(spec, settings=None)) == []


def test_a_file_that_replaces_a_device_is_read_and_not_written(make_context: MakeContext, device: Path) -> None:
    before = device.stat()
    (found,) = found_in(make_context, device, use_odirect=False)
    assert found.level is Level.OK
    assert f"{device} is a file of 1 MiB, with" in found.text
    assert found.facts["size_bytes"] == MIB
    after = device.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_each_of_several_devices_is_looked_at(make_context: MakeContext, device: Path) -> None:
    found = found_in(make_context, device, device.with_name("missing"), use_odirect=False)
    assert [each.level for each in found] == [Level.OK, Level.FAIL]
    assert "No such file" in found[1].text
    assert found[1].fix.endswith(str(device.with_name("missing")))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "tmpfs"}, "is on tmpfs: it is memory"),
        ({"kind": "nfs4"}, "is on nfs4, so its speed is that of the network"),
        ({"capacity_bytes": 2 * MIB}, "has 1 MiB, less than the 2 MiB"),
        ({"max_dax_size_gb": 1.0}, "has 1 MiB, less than the 1 GiB"),
    ],
)
def test_what_is_worth_a_warning(make_context: MakeContext, device: Path, given: dict[str, object], says: str) -> None:
    found = [each for each in found_in(make_context, device, **given) if says in each.text]  # type: ignore[arg-type]
    assert [each.level for each in found] == [Level.WARN]


def test_a_file_with_holes(make_context: MakeContext, device: Path) -> None:
    os.truncate(device, 64 * MIB)
    (holes,) = [each for each in found_in(make_context, device) if "has holes" in each.text]
    assert holes.level is Level.WARN
    assert 62 * MIB < holes.facts["missing_bytes"] <= 63 * MIB
    assert holes.fix == f"fallocate -l {64 * MIB} {device}"


def test_without_direct_io(make_context: MakeContext, device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_tools.doctor.devices._direct_io_fault", lambda path: "Invalid argument")
    asked = found_in(make_context, device)[-1]
    assert asked.level is Level.WARN
    assert "without direct I/O (Invalid argument), so that use_odirect does nothing" in asked.text
    assert found_in(make_context, device, use_odirect=False)[-1].level is Level.OK


def test_neither_device_nor_file(make_context: MakeContext, tmp_path: Path) -> None:
    (found,) = found_in(make_context, tmp_path)
    assert (found.level, found.text) == (Level.FAIL, f"{tmp_path} is not a device or a file")


def test_one_that_this_user_may_not_have(
    make_context: MakeContext, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_tools.doctor.devices.os.access", lambda path, mode: False)
    (found,) = found_in(make_context, device)
    assert found.level is Level.FAIL
    assert "cannot be read and written by this user" in found.text


def test_a_block_device_that_is_mounted(
    make_context: MakeContext, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path, flags: int, *more: object) -> int:
        assert flags & os.O_EXCL, "without it the kernel lets anybody in"
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr("lmcache_tools.doctor.devices.stat.S_ISBLK", lambda mode: True)
    monkeypatch.setattr("lmcache_tools.doctor.devices.os.open", busy)
    (found,) = found_in(make_context, device)
    assert found.level is Level.FAIL
    assert f"{device} is in use: mounted" in found.text


def test_a_memory_device_says_its_size_in_sysfs(make_context: MakeContext) -> None:
    path = Path("/dev/null")  # any character device
    number = path.stat().st_rdev
    assert stat.S_ISCHR(path.stat().st_mode)
    (unknown,) = found_in(make_context, path)
    assert (unknown.level, unknown.text) == (Level.OK, "/dev/null is a memory device of unknown size")
    context = make_context({f"sys/dev/char/{os.major(number)}:{os.minor(number)}/size": f"{MIB}\n"})
    spec = AdapterSpec("slots", OFFER, SlotSettings(device_path=path, max_dax_size_gb=1.0))
    small, known = devices(replace(context, adapters=(spec,)))
    assert "has 1 MiB, less than the 1 GiB" in small.text
    assert known.text == "/dev/null is a memory device of 1 MiB"
