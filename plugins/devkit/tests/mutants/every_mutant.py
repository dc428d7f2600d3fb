"""Adapters with one fault each, and the requirement that must find it."""

from __future__ import annotations

from plugins.devkit.tests.mutants import buffers, completions, contents, counts, lives, names, presence
from plugins.devkit.tests.mutants.file_adapter import PLANTED

__all__ = ["PLANTED", "buffers", "completions", "contents", "counts", "lives", "names", "presence"]
