"""The folders that adapters write to: file system, room, direct I/O, and whose clock its times are of."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lmcache_core.app.adapter_specs import AdapterSpec
from lmcache_tools.doctor.adapter_places import Capacity, adapter_capacity, adapter_folders
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.mounts import file_system_remark, mount_of
from lmcache_tools.doctor.probe_result import Level, ProbeResult
from lmcache_tools.quantities import seconds_text, size_text

_ROOM_MIN_BYTES: Final = 2**30
_SKEW_SECONDS: Final = 2.0
_PAGE: Final = 4096


def folders(context: CheckContext) -> Iterator[ProbeResult]:
    for spec in context.adapters:
        for path in adapter_folders(spec):
            yield from _folder(context, spec, path)


def _folder(context: CheckContext, spec: AdapterSpec, path: Path) -> Iterator[ProbeResult]:
    probe = f"folder of {spec.name}"
    there = next((each for each in (path.absolute(), *path.absolute().parents) if each.exists()), Path("/"))
    mount = mount_of(context.machine, there.resolve())
    kind = mount.kind if mount else "unknown"
    facts = {"path": str(path), "exists": there == path.absolute(), "file_system": kind}
    if there != path.absolute():
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            text = f"{path} does not exist, and this user cannot make it in {there} ({kind})"
            fix = f"mkdir -p {path}" if there.is_dir() else ""
            yield ProbeResult(probe, Level.FAIL, text, "make it, and let this user write to it", fix, facts)
            return
        yield ProbeResult(
            probe, Level.OK, f"{path} does not exist yet, and can be made in {there} ({kind})", facts=facts
        )
    elif not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield ProbeResult(
            probe, Level.FAIL, f"{path} is not a folder that this user may write to", "", f"chmod u+wx {path}", facts
        )
        return
    if mount and "ro" in mount.options:
        yield ProbeResult(probe, Level.FAIL, f"{mount.point} is mounted read-only", "mount it read-write", facts=facts)
        return
    if remark := file_system_remark(path, kind):
        yield ProbeResult(probe, Level.WARN, *remark)
    yield from _room(context, spec, probe, there)
    if there == path.absolute():
        yield from _times_and_direct_io(spec, probe, there, kind)


def _room(context: CheckContext, spec: AdapterSpec, probe: str, there: Path) -> Iterator[ProbeResult]:
    free = context.machine.free_bytes(there)
    if free is None:
        return
    bound = adapter_capacity(spec)
    capacity = bound.bytes if bound else None
    facts = {"free_bytes": free, "capacity_bytes": capacity}
    if bound is not None and capacity is not None and free < capacity:
        yield ProbeResult(
            probe,
            Level.WARN,
            f"{size_text(free)} are free, less than the {size_text(capacity)} that the adapter may keep (what it keeps "
            "already counts as used)",
            f"lower {bound.setting}, unless it has that much there already",
            facts=facts,
        )
    elif free < _ROOM_MIN_BYTES:
        yield ProbeResult(
            probe, Level.WARN, f"only {size_text(free)} are free", "make room, or use another disk", facts=facts
        )
    elif capacity is None:
        yield _unbounded(probe, free, spec, bound, facts)
    else:
        yield ProbeResult(probe, Level.OK, f"{size_text(free)} are free", facts=facts)


def _unbounded(
    probe: str, free: int, spec: AdapterSpec, bound: Capacity | None, facts: Mapping[str, Any]
) -> ProbeResult:
    text = f"{size_text(free)} are free, and nothing bounds what the adapter keeps"
    if spec.eviction is not None:
        return ProbeResult(probe, Level.OK, f"{text} but its eviction", facts=facts)
    remedy = f"see its settings: lmcache plugins show {spec.offer.name}"
    if bound is not None:
        remedy = f'set its "{bound.setting}", and give it an "eviction"'
    return ProbeResult(probe, Level.WARN, text, remedy, facts=facts)


def _times_and_direct_io(spec: AdapterSpec, probe: str, folder: Path, kind: str) -> Iterator[ProbeResult]:
    file = folder / f".lmcache-doctor-{secrets.token_hex(8)}"
    try:
        before = time.time()
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, b"x")
            os.fsync(descriptor)
            written = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
        skew = 0.0 if before - 0.1 <= written <= time.time() + 0.1 else written - before
        direct = _direct_io_fault(file)
    except OSError as error:
        remedy = "see who owns it, and how it is mounted"
        yield ProbeResult(probe, Level.FAIL, f"nothing can be written to {folder}: {error.strerror}", remedy)
        return
    finally:
        with suppress(OSError):
            file.unlink()
    if abs(skew) > _SKEW_SECONDS:
        text = f"file times there are {seconds_text(abs(skew))} {'ahead' if skew > 0 else 'behind'}"
        yield ProbeResult(probe, Level.WARN, text, "set both clocks with NTP", facts={"skew_seconds": skew})
    wants = bool(getattr(spec.settings, "use_odirect", False))
    facts = {"file_system": kind, "direct_io": direct is None, "skew_seconds": round(skew, 3)}
    if direct is None:
        yield ProbeResult(probe, Level.OK, f"{kind}, writable, with direct I/O", facts=facts)
    elif wants:
        text = f"{kind} has no direct I/O ({direct}), so that use_odirect does nothing"
        yield ProbeResult(probe, Level.WARN, text, "leave use_odirect out, or use ext4 or xfs", facts=facts)
    else:
        yield ProbeResult(probe, Level.OK, f"{kind}, writable, without direct I/O", facts=facts)


def _direct_io_fault(file: Path) -> str | None:
    """Why a page cannot be written past the page cache."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        return os.strerror(error.errno or errno.EINVAL)
    try:
        with mmap.mmap(-1, _PAGE) as page:
            os.pwrite(descriptor, page, 0)
    except OSError as error:
        return os.strerror(error.errno or errno.EINVAL)
    finally:
        os.close(descriptor)
    return None
