"""Builds the fuzz targets of lmcache-native, with address and undefined-behaviour sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

NATIVE: Final = Path(__file__).parents[2] / "libs" / "native"
BLAKE3: Final = "third_party/blake3"
_COPY: Final = ("src/cpp/page_copy.cpp", "src/cpp/fault_guard.cpp", "src/cpp/row_copy.cpp")
TARGETS: Final = MappingProxyType({"prompt_tokens": (), "page_copy": _COPY, "key_index": ()})
"""Sources beside the target's own `fuzz/TARGET.cpp`."""
_SANITIZED: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")
_PORTABLE_BLAKE3: Final = tuple(f"-DBLAKE3_NO_{name}" for name in ("SSE2", "SSE41", "AVX2", "AVX512"))


def fuzzing_compiler() -> str | None:
    """clang++ with libFuzzer; None where it is not installed."""
    for name in ("clang++", "clang++-14", "clang++-16", "clang++-19"):
        if found := shutil.which(name):
            where = subprocess.run(
                [found, "-print-file-name=libclang_rt.fuzzer-x86_64.a"], capture_output=True, text=True, check=True
            )
            runtime = subprocess.run([found, "-print-runtime-dir"], capture_output=True, text=True, check=True)
            folders = [Path(where.stdout.strip()), Path(runtime.stdout.strip(), "libclang_rt.fuzzer-x86_64.a")]
            if any(folder.is_file() for folder in folders):
                return found
    return None


def build(target: str, folder: Path, fuzzer: str | None, native: Path = NATIVE) -> Path:
    """The program of a target in `folder`: a libFuzzer one where `fuzzer` is a clang++, else one that replays files.  Raises
    CalledProcessError with the compiler's words."""
    compiler = fuzzer or "g++"
    sanitized = [*_SANITIZED, *(["-fsanitize=fuzzer"] if fuzzer else [])]
    objects = []
    if target == "prompt_tokens":
        c_compiler = compiler.replace("clang++", "clang").replace("g++", "gcc")
        for name in ("blake3", "blake3_dispatch", "blake3_portable"):
            objects.append(str(folder / f"{name}.o"))
            _run([c_compiler, "-O1", *_PORTABLE_BLAKE3, "-c", str(native / BLAKE3 / f"{name}.c"), "-o", objects[-1]])
    sources = [native / "fuzz" / f"{target}.cpp", *(native / source for source in TARGETS[target])]
    if not fuzzer:
        sources.append(native / "fuzz" / "replay.cpp")
    program = folder / target
    _run(
        [
            compiler,
            *sanitized,
            "-std=c++20",
            f"-I{native / BLAKE3}",
            *map(str, sources),
            *objects,
            "-pthread",
            "-o",
            str(program),
        ]
    )
    return program


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-3000:]}")
