"""What some tests need of the operating system: Prometheus, a browser, fio, what mounts FUSE file systems, Redis, etcd, Ceph's
object gateway, and the libraries that Mooncake's package is linked with.

Usage: ENVIRONMENT/bin/python -m scripts.system_packages [--slow]

With `--slow`, what the slow tests need, too: clang with libFuzzer.
They are installed with Debian's apt-get where that may be done.  Without them there is a warning, and their tests are skipped.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from typing import Final

PROGRAMS: Final = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "chromium": "chromium",
    "fio": "fio",
    "fusermount3": "fuse3",
    "redis-server": "redis-server",
    "etcd": "etcd-server",
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "radosgw": "radosgw",
}
"""Packages by the program that is looked for."""

SLOW_PROGRAMS: Final = {"clang++-14": "clang-14"}
SLOW_FILES: Final = {"/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-x86_64.a": "libclang-rt-14-dev"}
LIBRARIES: Final = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""Packages by the library that is loaded."""


def main() -> int:
    slow = "--slow" in sys.argv[1:]
    if missing := packages(slow):
        install(missing)
    for name, package in missing_things(slow):
        print(f"system: WARNING: no {name}, so its tests are skipped; install the package {package} for them")
    return 0


def packages(slow: bool = False) -> list[str]:
    """Those that something is missing of."""
    return sorted({package for _, package in missing_things(slow)})


def missing_things(slow: bool = False) -> list[tuple[str, str]]:
    """Programs and libraries that are not there, each with its package."""
    wanted = PROGRAMS | SLOW_PROGRAMS if slow else PROGRAMS
    programs = [(program, package) for program, package in wanted.items() if not shutil.which(program)]
    files = [(path, package) for path, package in SLOW_FILES.items() if slow and not os.path.exists(path)]
    return [*programs, *files, *((library, package) for library, package in LIBRARIES.items() if not _loads(library))]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def install(names: list[str]) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"system: installing {' and '.join(names)} with apt-get", flush=True)
    # a package's service must not be started: tests start what they need
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *names]):
        done = subprocess.run(
            ["apt-get", "-q", *arguments], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            print(done.stderr.strip()[-500:], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
