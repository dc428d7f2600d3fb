"""Where NIXL, or one of its backends, is not available, one sentence says which part is missing and how to get it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import ResourceError
from lmcache_nixl_agent import binding
from lmcache_nixl_agent.agent import NixlAgent


def test_without_nixl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, package: str | None = None) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(binding, "import_module", missing)
    with pytest.raises(ResourceError, match=r"n: NIXL is not there .*nixl_cu12.*lmcache-nixl-agent\[cu12\]"):
        NixlAgent.open("n", "POSIX", {})


class TestWithNixl:
    @pytest.fixture(autouse=True)
    def nixl(self) -> None:
        pytest.importorskip("nixl", reason="no build of NIXL is installed")

    @pytest.mark.parametrize("backend", ["GDS", "GDS_MT"])
    def test_a_backend_whose_libraries_are_missing_names_one_of_them(self, backend: str) -> None:
        try:
            NixlAgent.open("n", backend, {})
        except ResourceError as error:
            said = str(error)
        else:
            pytest.skip(f"{backend} can be used on this machine")
        assert f"n: backend '{backend}' of NIXL" in said
        assert "cuFile" in said
        assert "cannot be loaded (lib" in said or "cannot be started" in said

    def test_a_backend_that_is_not_part_of_the_build_says_so(self) -> None:
        if binding.nixl_library("n").plugin_file("HF3FS"):
            pytest.skip("this build has HF3FS")
        with pytest.raises(
            ResourceError, match=r"'HF3FS' of NIXL .* is not part of this build; .* client library of 3FS"
        ):
            NixlAgent.open("n", "HF3FS", {})

    def test_the_parameters_of_a_backend_are_in_no_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AZURE_STORAGE_CONTAINER_NAME", raising=False)
        with pytest.raises(
            ResourceError, match=r"'AZURE_BLOB' of NIXL .* cannot be started .* container_name"
        ) as refused:
            NixlAgent.open("n", "AZURE_BLOB", {"connection_string": "AccountKey=very-hidden"})
        assert "hidden" not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_any_installed_build_will_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The wheel of one version of CUDA, without the package that chooses among them."""

        def without_chooser(name: str, package: str | None = None) -> Any:
            if name.split(".")[0] == "nixl":
                raise ModuleNotFoundError("No module named 'nixl'")
            return importlib.import_module(name, package)

        monkeypatch.setattr(binding, "import_module", without_chooser)
        assert binding.nixl_library("n").package in ("nixl_cu12", "nixl_cu13")

    def test_a_plugin_folder_of_ones_own_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        own = tmp_path / "libplugin_POSIX.so"
        own.touch()
        monkeypatch.setenv("NIXL_PLUGIN_DIR", str(tmp_path))
        assert binding.nixl_library("n").plugin_file("POSIX") == own
