"""Where the answer of a command goes: `--format`, `--json`, `--output` and `--quiet`; and columns for a terminal.

    parser = CommandParser("lmcache things", "Show things.")
    add_output_flags(parser)
    CommandOutput.of(parser.parse_all(arguments)).show(answer, "two things")

`answer` is whatever JSON can say, and complete: what the text shows can be computed from it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

from lmcache_client.errors import ResourceError


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """What every command takes that answers something."""
    section = parser.add_argument_group("output")
    section.add_argument(
        "--format", choices=("terminal", "json"), default="terminal", help="for people, or as JSON (default: terminal)"
    )
    section.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    section.add_argument(
        "--output", metavar="FILE", help="write the answer to a file, owner-only, and not to the screen"
    )
    section.add_argument("-q", "--quiet", action="store_true", help="show no answer; the exit code says how it went")


class CommandOutput(NamedTuple):
    """By the flags of `add_output_flags`.  One thread."""

    format: Literal["terminal", "json"] = "terminal"
    path: str | None = None
    quiet: bool = False

    @classmethod
    def of(cls, given: argparse.Namespace) -> Self:
        return cls(given.format, given.output or None, given.quiet)

    @property
    def is_json(self) -> bool:
        return self.format == "json"

    def show(self, answer: Any, text: str, indent: int | None = 2) -> None:
        """The answer as JSON, or the text as it is.  Raises ResourceError when the file cannot be written."""
        if self.is_json and (self.path is not None or not self.quiet):
            import json  # what is shown to people does without

            text = json.dumps(answer, indent=indent)
        if self.path is not None:
            _write(self.path, text)
        elif not self.quiet:
            print(text, flush=True)


def _write(path: str, text: str) -> None:
    """Owner-only, because answers name tenants and paths."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ResourceError(f"--output {path}: cannot be written: {error.strerror}") from None


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """One line per row, columns aligned to the left and two spaces apart; as `printable`, cell by cell."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def printable(text: str) -> str:
    """The text, or with what would move a terminal's cursor written as an escape: some texts hold names that others
    chose."""
    return text if text.isprintable() else repr(text)[1:-1]
