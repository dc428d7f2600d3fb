"""Where the answer of a command goes, and how it looks there: `--format`, `--json`, `--output` and `--quiet`.

    parser = Parser("lmcache things", "Show things.")
    add_output_flags(parser)                        # add_admin_flags(parser) adds them, too
    output = CommandOutput.of(parser.parse_all(arguments))
    output.show(answer, lambda: [Line("two things"), Table(("NAME", "BYTES"), rows)])

`answer` is whatever JSON can say, and complete: what the page shows can be computed from it.  A terminal gets the page
as `draw` draws it, a pipe or a file as plain text.  `show` may be called again, for a command that
goes on answering; JSON is then one object per line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TextIO

from lmcache_client.errors import ConfigError, ResourceError

if TYPE_CHECKING:  # `lmcache version` is as fast as it can be
    from lmcache_core.app.console.page import Page

_ERASE_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"


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


def print_plain(page: Page, stream: TextIO) -> None:
    print(_plain(page), file=stream, flush=True)


class CommandOutput(NamedTuple):
    """By the flags of `add_output_flags`.  One thread."""

    format: Literal["terminal", "json"] = "terminal"
    path: str | None = None
    quiet: bool = False
    draw: Callable[[Page, TextIO], None] = print_plain
    """On a terminal."""

    @classmethod
    def of(cls, given: argparse.Namespace, draw: Callable[[Page, TextIO], None] = print_plain) -> Self:
        return cls(given.format, given.output or None, given.quiet, draw)

    @property
    def is_json(self) -> bool:
        return self.format == "json"

    @property
    def is_terminal(self) -> bool:
        """Is a person looking at what is shown?"""
        return not (self.is_json or self.path or self.quiet) and has_terminal()

    def show(self, answer: Any, page: Callable[[], Page]) -> None:
        """Raises ResourceError when the file cannot be written."""
        if self.path is not None:
            _write(self.path, _json(answer, 2) if self.is_json else _plain(page()))
        elif self.quiet:
            return
        elif self.is_json:
            print(_json(answer, 2), flush=True)
        elif has_terminal():
            self.draw(page(), sys.stdout)
        else:
            print(_plain(page()), flush=True)

    def show_text(self, answer: Any, text: str) -> None:
        """As `show`, for what another program is to read: it is not drawn, and not changed."""
        if self.path is not None and not self.is_json:
            _write(self.path, text)
        elif self.path is not None or self.is_json:
            self.show(answer, list)
        elif not self.quiet:
            print(text, flush=True)

    def show_next(self, answer: Any, page: Callable[[], Page]) -> None:
        """As `show`, for an answer that follows another: it takes its place on a terminal, and JSON is one line."""
        if self.path is not None:
            raise ConfigError("--output holds one answer; leave it out where answers go on")
        if self.is_json and not self.quiet:
            print(_json(answer), flush=True)
            return
        if self.is_terminal:
            sys.stdout.write(_ERASE_SCREEN)
        self.show(answer, page)


def has_terminal() -> bool:
    """Does standard output reach a terminal that can be drawn on?"""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _plain(page: Page) -> str:
    from lmcache_core.app.console.page import plain_page  # as above

    return "\n".join(plain_page(page))


def _json(answer: Any, indent: int | None = None) -> str:
    import json  # what is shown to people does without

    return json.dumps(answer, indent=indent)


def _write(path: str, text: str) -> None:
    """Owner-only, because answers name tenants and paths."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise ResourceError(f"--output {path}: cannot be written: {error.strerror}") from None
