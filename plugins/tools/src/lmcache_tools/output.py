"""Shows the answer of a command as a page: drawn on a terminal, plain text in a pipe or a file.

output_of(parser.parse_all(arguments)).show(answer, lambda: [Line("two things"), Table(("NAME", "BYTES"), rows)])
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lmcache_client.errors import ConfigError
from lmcache_core.app.console.command_output import CommandOutput
from lmcache_tools.page import Page, plain_page

_ERASE_SCREEN: Final = "\x1b[H\x1b[2J\x1b[3J"


class PageOutput(NamedTuple):
    """One thread."""

    output: CommandOutput

    @property
    def is_drawn(self) -> bool:
        """Does the answer go to a terminal that can be drawn on?"""
        to_screen = not (self.output.is_json or self.output.path or self.output.quiet)
        return to_screen and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, answer: Any, page: Callable[[], Page]) -> None:
        """`answer` is what JSON says.  Raises ResourceError when the file of `--output` cannot be written."""
        if self.is_drawn:
            from lmcache_tools.terminal_page import draw_page  # rich is only paid for where it shows

            draw_page(page(), sys.stdout)
        else:
            self.output.show(answer, "" if self.output.is_json else "\n".join(plain_page(page())))

    def show_next(self, answer: Any, page: Callable[[], Page]) -> None:
        """As `show`, for an answer that follows another: it takes its place on a terminal, and JSON is one line."""
        if self.output.path is not None:
            raise ConfigError("--output holds one answer; leave it out where answers go on")
        if self.output.is_json:
            self.output.show(answer, "", indent=None)
            return
        if self.is_drawn:
            sys.stdout.write(_ERASE_SCREEN)
        self.show(answer, page)


def output_of(given: argparse.Namespace) -> PageOutput:
    """By the flags of `add_output_flags`."""
    return PageOutput(CommandOutput.of(given))
