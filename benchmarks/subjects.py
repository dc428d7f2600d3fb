"""Who is measured: this server with and without compiled kernels, the public one, and the echo that bounds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.echo import EchoProcess
from benchmarks.process import Process
from benchmarks.transfer import PUBLIC_SERVER, public_is_installed
from demo.server_process import LMCACHE, ServerProcess
from lmcache_core.app.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    describes: str
    make: Callable[[Path, float], Process]
    """With a folder for its log and the GiB of L1."""
    native: str | None = None
    """The value of our setting of that name; None where there is none."""

    @property
    def is_echo(self) -> bool:
        return self.name == "echo"

    @property
    def is_ours(self) -> bool:
        return self.name in ("native", "pure")


def _ours(native: str | None) -> Callable[[Path, float], Process]:
    kernels = [] if native is None else ["--native", native]

    def make(folder: Path, l1_gb: float) -> Process:
        return ServerProcess(["--l1-size-gb", str(l1_gb), *kernels], folder / "ours.log", executable=LMCACHE)

    return make


def _public(folder: Path, l1_gb: float) -> Process:
    options = (
        f"--l1-size-gb {l1_gb} --no-l1-use-lazy --eviction-policy LRU --chunk-size 256 "
        f"--supported-transfer-mode auto --shm-name bench-{os.getpid()}"
    )
    return ServerProcess(options.split(), folder / "public.log", executable=PUBLIC_SERVER)


def _echo(folder: Path, l1_gb: float) -> Process:
    return EchoProcess(folder / "echo.log")


def available() -> Sequence[Subject]:
    """All that are installed here."""
    found = [Subject("echo", "an empty ROUTER that answers with the envelope", _echo)]
    can_choose = "native" in ServerSettings.model_fields
    if can_choose and find_spec("lmcache_native"):
        found.append(Subject("native", "this server with lmcache-native", _ours("on"), "on"))
    off = "off" if can_choose else None
    found.append(Subject("pure", "this server in pure Python", _ours(off), off))
    if public_is_installed():
        found.append(Subject("public", "the public LMCache 0.5.6 server", _public))
    return found
