"""Which law must find which fault."""

from __future__ import annotations

from collections.abc import Callable

from core.tests.testing.mutants.file_adapter import FileAdapter

LAWS: dict[type[FileAdapter], str] = {}
"""Each mutant that was imported, and the name of the test that kills it."""

LATER_SECONDS = 0.05


def killed_by(law: str) -> Callable[[type[FileAdapter]], type[FileAdapter]]:
    def note(mutant: type[FileAdapter]) -> type[FileAdapter]:
        LAWS[mutant] = f"test_{law}"
        return mutant

    return note
