"""What every suite of the conformance kit starts from: an offer, and the settings to open it with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Self

import msgspec
import pytest

from lmcache_core.app.console.command_line import selection_from
from lmcache_core.contracts.offer import Offer
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_devkit.check_limit import CHECK_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class OpenableOffer:
    """An offer and what to open it with; travels to child processes as text."""

    offer: Offer
    settings: Mapping[str, Any] = field(repr=False)  # they may hold secrets, and failing tests print what they compare

    def open(self, *context: Any) -> Any:
        """Validate the settings and call the offer's `open`.  Raises ConfigError for settings that are not its own."""
        return _named(self.offer.open)(self.validated(), *context)

    def validated(self) -> Any:
        """The settings model, filled; None where the offer takes no settings."""
        if self.offer.settings is None:
            validate(PluginSettings, self.settings, self.offer.name)  # refuses any
            return None
        return validate(_named(self.offer.settings), self.settings, self.offer.name)

    def with_settings(self, **changes: Any) -> OpenableOffer:
        """The same offer, with some settings changed."""
        return OpenableOffer(self.offer, {**self.settings, **changes})

    def to_json(self) -> str:
        """Values of settings that JSON does not have become text."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)


class OfferSuite:
    """Base of the suites.  Subclass one of them, not this."""

    kind: ClassVar[str]
    """Which kind of offer the suite is for, as `lmcache plugins list` names it."""
    offer: ClassVar[str | Offer]
    """The offer under test: the name of an installed one, or the value itself."""
    check_seconds_max: ClassVar[float] = CHECK_SECONDS_MAX
    """How long the set-up, the body and the tear-down of a check may take each; what takes longer fails."""

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        """Override: what a user would write in the configuration, as JSON values.  Fresh for each test."""
        return {}

    @pytest.fixture
    def under_test(self, settings: Mapping[str, Any]) -> OpenableOffer:
        return OpenableOffer(installed_offer(self.kind, self.offer), settings)


def installed_offer(kind: str, offer: str | Offer) -> Offer:
    """The offer itself, or the installed one of this name.  Raises ConfigError where there is none."""
    return offer if isinstance(offer, Offer) else selection_from(os.environ).load().offer(kind, offer)


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
