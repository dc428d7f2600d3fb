"""A plugin that offers the serdes of these tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import SecretStr

from lmcache_core import ObjectLayout, Offer, PluginSettings, Serde, hookimpl
from plugins.serde.tests.chain.serdes import Deflate, HalfPrecision, Xor

LMCACHE_PLUGIN_API = 1


class LockSettings(PluginSettings):
    master: SecretStr
    """A name that does not sound like a secret: its type says that it is one."""


def open_xor(settings: None) -> Serde:
    return Xor()


def open_deflate(settings: None) -> Serde:
    return Deflate()


def open_half(settings: None) -> Serde:
    return HalfPrecision()


def open_lock(settings: LockSettings) -> Serde:
    return Xor(settings.master.get_secret_value().encode()[0])


class Forgetful(Xor):
    """Brings back another first byte, and no header says what it was."""

    conceals = True

    def decode(self, key: Any, layout: Any, parameters: bytes, stored: memoryview, into: memoryview) -> None:
        super().decode(key, layout, parameters, stored, into)
        into[0] ^= 1


class Picky(HalfPrecision):
    def stored_bytes_max(self, layout: ObjectLayout) -> int:
        raise ValueError(f"{layout} is not good enough")


def open_forgetful(settings: None) -> Serde:
    return Forgetful()


def open_picky(settings: None) -> Serde:
    return Picky()


def open_nothing(settings: None) -> object:
    return object()


@hookimpl
def lmcache_serdes() -> Sequence[Offer]:
    names = ("xor", "deflate", "half", "nothing", "forgetful", "picky")
    offers = [Offer(name, "for tests", f"{__name__}:open_{name}") for name in names]
    return [*offers, Offer("lock", "for tests", f"{__name__}:open_lock", f"{__name__}:LockSettings")]
