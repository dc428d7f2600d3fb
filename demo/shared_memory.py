"""Files in /dev/shm: what an engine's own processes share stays when all of them are killed at once."""

from __future__ import annotations

from pathlib import Path

SHM_ROOT = Path("/dev/shm")
PRIVATE = ("psm_", "sem.mp-", "sgl_shm_mq_", "sglang_loads_", "vllm_dist_", "lmcache_kv_")
"""What Python's multiprocessing, SGLang and vLLM's workers share, and the KV memory of a stock engine whose server copies.  A
cache server's segment, which engines map too, is not theirs."""
SERVERS = "lmcache-l1-"


def shared_by_group(process_group: int) -> set[Path]:
    """What processes of this group share among themselves, and have mapped now."""
    mapped: set[int] = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and _group_of(process) == process_group:
                mapped |= _mapped_by(process)
        except OSError:
            continue  # it has ended meanwhile, or is another user's
    return {path for path, inode in _there().items() if inode in mapped and path.name.startswith(PRIVATE)}


def group_runs(process_group: int) -> bool:
    """Whether a process of this group has a thread that has not ended: each keeps all files open.  A process that has ended,
    and whose parent has not asked, does not count."""
    return _has_thread(process_group, beside="ZX")


def group_is_stopped(process_group: int) -> bool:
    """Whether each of its threads has seen SIGSTOP.  Those of a busy machine go on for milliseconds, and answer requests."""
    return not _has_thread(process_group, beside="ZXTt")


def unmapped_files() -> set[Path]:
    """Files of engines and of cache servers that no process has mapped: their creator is gone."""
    there = _there()
    mapped: set[int] = set()
    for process in Path("/proc").iterdir():
        try:
            mapped |= _mapped_by(process) if process.name.isdigit() else set()
        except OSError:
            continue
    names = (*PRIVATE, SERVERS)
    return {path for path, inode in there.items() if inode not in mapped and path.name.startswith(names)}


def _there() -> dict[Path, int]:
    """Inode numbers: a semaphore is mapped under another name than it has, the one that it was made under."""
    found = {}
    for path in SHM_ROOT.iterdir():
        try:
            found[path] = path.stat().st_ino
        except FileNotFoundError:
            continue
    return found


def _group_of(process: Path) -> int:
    return int(_stat(process)[2])


def _has_thread(process_group: int, *, beside: str) -> bool:
    """In any state but these."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            threads = list((process / "task").iterdir())
        except OSError:
            continue  # it has ended meanwhile
        for thread in threads:
            try:
                state, _, group, *_ = _stat(thread)
            except OSError:
                continue
            if int(group) == process_group and state not in beside:
                return True
    return False


def _stat(process: Path) -> list[str]:
    """Fields from the third on, behind the name, which may have any character in it."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _mapped_by(process: Path) -> set[int]:
    fields = (line.split(maxsplit=5) for line in (process / "maps").read_text().splitlines())
    return {int(field[4]) for field in fields if len(field) > 5 and field[5].startswith(f"{SHM_ROOT}/")}
