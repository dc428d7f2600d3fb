"""The devices that adapters write to, and files that replace one: who may use them, how large they are, direct I/O.

They are read only.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_tools.doctor.adapter_places import adapter_capacity, adapter_devices
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.mounts import file_system_remark, mount_of
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.machine import Machine
from lmcache_tools.quantities import size_text

_PAGE: Final = 4096
_STAT_BLOCK: Final = 512


def devices(context: CheckContext) -> Iterator[ProbeResult]:
    for spec in context.adapters:
        for path in adapter_devices(spec):
            yield from _device(context, spec, path)


def _device(context: CheckContext, spec: AdapterSpec, path: Path) -> Iterator[ProbeResult]:
    probe = f"device of {spec.name}"
    try:
        found = path.stat()
    except OSError as error:
        remedy = "name a block device or a memory device, or make a file of the size that it may have"
        yield ProbeResult(probe, Level.FAIL, f"{path}: {error.strerror}", remedy, f"fallocate -l 64G {path}")
        return
    kind = _kind(found.st_mode)
    if kind is None:
        yield ProbeResult(probe, Level.FAIL, f"{path} is not a device or a file", "name a device or a file")
        return
    if fault := _access_fault(path, found.st_mode):
        text, remedy = fault
        yield ProbeResult(probe, Level.FAIL, f"{path} {text}", remedy)
        return
    size = _size(context.machine, path, found)
    if stat.S_ISREG(found.st_mode):
        yield from _file(context.machine, probe, path, found)
    yield from _room(spec, probe, path, size)
    if not stat.S_ISCHR(found.st_mode):
        yield _direct_io(spec, probe, path, kind, size)
    else:
        facts = {"path": str(path), "kind": kind, "size_bytes": size}
        shown = "of unknown size" if size is None else f"of {size_text(size)}"
        yield ProbeResult(probe, Level.OK, f"{path} is a {kind} {shown}", facts=facts)


def _kind(mode: int) -> str | None:
    if stat.S_ISBLK(mode):
        return "block device"
    if stat.S_ISCHR(mode):
        return "memory device"
    return "file" if stat.S_ISREG(mode) else None


def _access_fault(path: Path, mode: int) -> tuple[str, str] | None:
    """Why a server of this user could not open it, and what to do about it."""
    if not os.access(path, os.R_OK | os.W_OK):
        return "cannot be read and written by this user", "give it to this user or its group"
    if not stat.S_ISBLK(mode):
        return None
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_EXCL))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return "is in use: mounted, part of another device, or a server's", "unmount it, or name another device"
        return f"cannot be opened: {error.strerror}", "let this user read and write it; the kernel's log may say more"
    return None


def _size(machine: Machine, path: Path, found: os.stat_result) -> int | None:
    """In bytes; None where the system does not say."""
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    if stat.S_ISCHR(found.st_mode):
        said = machine.text(f"sys/dev/char/{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}/size")
        return int(said) if said.isdecimal() else None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def _file(machine: Machine, probe: str, path: Path, found: os.stat_result) -> Iterator[ProbeResult]:
    mount = mount_of(machine, path.resolve())
    if mount and (remark := file_system_remark(path, mount.kind)):
        yield ProbeResult(probe, Level.WARN, *remark)
    missing = found.st_size - found.st_blocks * _STAT_BLOCK
    if missing > 0:
        yield ProbeResult(
            probe,
            Level.WARN,
            f"{path} has holes: {size_text(missing)} of it are not allocated, and its file system may be full before it is",
            "allocate all of it",
            f"fallocate -l {found.st_size} {path}",
            {"missing_bytes": missing},
        )


def _room(spec: AdapterSpec, probe: str, path: Path, size: int | None) -> Iterator[ProbeResult]:
    bound = adapter_capacity(spec)
    wanted = bound.bytes if bound else None
    if bound is None or not size or wanted is None or wanted <= size:
        return
    text = f"{path} has {size_text(size)}, less than the {size_text(wanted)} that the adapter is to use"
    yield ProbeResult(
        probe, Level.WARN, text, f"lower {bound.setting}, or name a larger one", facts={"wanted_bytes": wanted}
    )


def _direct_io(spec: AdapterSpec, probe: str, path: Path, kind: str, size: int | None) -> ProbeResult:
    fault = _direct_io_fault(path)
    facts = {"path": str(path), "kind": kind, "size_bytes": size, "direct_io": fault is None}
    shown = f"{path} is a {kind} of {size_text(size or 0)}"
    if fault is None:
        return ProbeResult(probe, Level.OK, f"{shown}, with direct I/O", facts=facts)
    if getattr(spec.settings, "use_odirect", False):
        text = f"{shown} without direct I/O ({fault}), so that use_odirect does nothing"
        return ProbeResult(probe, Level.WARN, text, "set use_odirect to false, or use another file system", facts=facts)
    return ProbeResult(probe, Level.OK, f"{shown}, without direct I/O", facts=facts)


def _direct_io_fault(path: Path) -> str | None:
    """Why a page cannot be read past the page cache."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            with mmap.mmap(-1, _PAGE) as page:
                os.preadv(descriptor, [page], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return os.strerror(error.errno or errno.EINVAL)
    return None
