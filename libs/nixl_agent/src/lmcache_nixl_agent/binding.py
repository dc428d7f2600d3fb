"""NIXL, found, or in one sentence why it is not available.

NIXL comes as a wheel for each version of CUDA (`nixl-cu12`, `nixl-cu13`) and runs without CUDA, too; `nixl` is a thin package
that takes whichever is there.  It is imported when an agent is opened."""

from __future__ import annotations

import ctypes
import logging
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lmcache_core import ResourceError

PACKAGES: Final = ("nixl", "nixl_cu13", "nixl_cu12")
INSTALL: Final = (
    "install one build of it: pip install 'lmcache-nixl-agent[cu12]' or 'lmcache-nixl-agent[cu13]'; on a machine without CUDA, "
    "pip install --no-deps nixl-cu12 beside numpy leaves out torch, which nothing here needs"
)
_NEEDS: Final = {
    "GDS": "the CUDA runtime and cuFile (pip install nvidia-cuda-runtime-cu12 nvidia-cufile-cu12, and their folders in "
    "LD_LIBRARY_PATH), an NVIDIA GPU with its driver, and for direct transfers the nvidia-fs module",
    "HF3FS": "the client library of 3FS, and a NIXL that was built with it; NIXL_PLUGIN_DIR names the folder of its plugins",
    "OBJ": "a bucket that is there (bucket, or AWS_DEFAULT_BUCKET), and an endpoint that can be reached",
    "AZURE_BLOB": "container_name, and account_url or connection_string",
    "UCX": "UCX_NET_DEVICES and UCX_TLS, where they are set, to name what is there",
    "POSIX": "a kernel that allows asynchronous I/O; try another of use_aio, use_uring and use_posix_aio",
}
_NEEDS_OF: Final = {**_NEEDS, "GDS_MT": _NEEDS["GDS"]}


class NixlLibrary:
    """The installed NIXL: its Python API, and the errors that it raises."""

    def __init__(self, package: str, api: ModuleType, bindings: ModuleType) -> None:
        self.package: Final = package
        self.api: Final[Any] = api
        values = vars(bindings).values()
        found = [value for value in values if isinstance(value, type) and issubclass(value, Exception)]
        self.errors: Final[tuple[type[Exception], ...]] = tuple(found)
        self.not_found: Final[type[Exception]] = bindings.nixlNotFoundError
        self._bindings = bindings

    def plugin_file(self, backend: str) -> Path | None:
        """The shared library of a storage plugin; None where there is none."""
        home = Path(str(self._bindings.__file__)).parent
        folders = [home.parent / f".{home.name}.mesonpy.libs" / "plugins", home.parent / f"{home.name}.libs" / "nixl"]
        if named := os.environ.get("NIXL_PLUGIN_DIR"):
            folders.insert(0, Path(named))
        files = (folder / f"libplugin_{backend}.so" for folder in folders)
        return next((file for file in files if file.is_file()), None)


def nixl_library(name: str) -> NixlLibrary:
    """Raises ResourceError, for the agent of this name, where none is installed or it cannot be loaded."""
    reasons = []
    for package in PACKAGES:
        try:
            bindings = import_module(f"{package}._bindings")
            api = import_module(f"{package}._api")
        except ImportError as error:
            reasons.append(f"{package}: {error}")
            continue
        if "NIXL_LOG_LEVEL" not in os.environ:
            # It prints a line for each agent to standard output, which belongs to the server.
            logging.getLogger("nixl").setLevel(logging.WARNING)
        return NixlLibrary(package, api, bindings)
    raise ResourceError(f"{name}: NIXL is not there ({'; '.join(reasons)}); {INSTALL}")


def unusable(name: str, backend: str, library: NixlLibrary, error: Exception) -> ResourceError:
    """Why this backend is not available: no such plugin, a library that it lacks, or what it says of itself."""
    where = f"{name}: backend '{backend}' of NIXL ({library.package})"
    needs = f"it needs {_NEEDS_OF[backend]}"
    file = library.plugin_file(backend)
    if file is None:
        return ResourceError(f"{where} is not part of this build; {needs}")
    if isinstance(error, library.not_found):
        return ResourceError(f"{where} cannot be loaded ({_lacking(file)}); {needs}")
    return ResourceError(f"{where} cannot be started ({error}; NIXL's reason is on standard error); {needs}")


def _lacking(file: Path) -> str:
    """What the loader says of a shared library that NIXL failed to load."""
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return str(error)
    return "NIXL does not say why"
