"""Command lines whose mistakes are one readable line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from lmcache_client.errors import ConfigError
from lmcache_core.model.spelling import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError where argparse would print its usage and exit."""

    def __init__(self, program: str, about: str, usage: str | None = None, *, add_help: bool = True) -> None:
        super().__init__(prog=program, description=about, usage=usage, allow_abbrev=False, add_help=add_help)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, or raise ConfigError for the first argument that nothing takes, with the flag that was probably meant."""
        parsed, unknown = self.parse_known_args(list(arguments))
        if unknown:
            self.refuse(unknown[0])
        return parsed

    def refuse(self, argument: str) -> NoReturn:
        """Raise ConfigError for an argument that nothing takes."""
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            raise ConfigError(f"'{flag}' is not expected here; see `{self.prog} --help`")
        guess = nearest(flag.lstrip("-"), [known.lstrip("-") for known in self._option_string_actions])
        raise ConfigError(
            f"no flag is called {flag}; " + (f"did you mean --{guess}?" if guess else f"see `{self.prog} --help`")
        )
