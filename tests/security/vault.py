"""A plugin with an L2 adapter that has secrets in its settings, and that says them whenever something goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, SecretStr

from lmcache_core import (
    AdapterContext,
    BorrowedBuffer,
    HttpAnswer,
    HttpContext,
    HttpRequest,
    HttpRoute,
    L2Adapter,
    ObjectKey,
    Offer,
    Outcome,
    PluginSettings,
    hookimpl,
)
from lmcache_l2_adapter import BlockingL2Adapter

LMCACHE_PLUGIN_API = 1

TYPED = "typed-secret-5c1f"
MARKED = "marked-secret-77aa"
NAMED = "named-secret-0b3e"
IN_URL = "url-secret-9d42"
QUOTED = 'quoted-"secret"-é-31'
SECRETS = (TYPED, MARKED, NAMED, IN_URL)
VALUES: Mapping[str, Any] = {
    "type": "vault",
    "phrase": TYPED,
    "combination": MARKED,
    "extra": {"api_key": NAMED, "headers": {"Authorization": "Bearer " + NAMED}},
    "endpoint": f"https://someone:{IN_URL}@store.example/bucket",
    "quoted": QUOTED,
    "region": "visible-region",
}


class VaultSettings(PluginSettings):
    """Where the vault is and what opens it."""

    phrase: SecretStr
    combination: str = Field(json_schema_extra={"secret": True})
    extra: dict[str, Any]
    endpoint: str
    quoted: SecretStr
    region: str


class Vault(BlockingL2Adapter):
    def __init__(self, settings: VaultSettings, context: AdapterContext) -> None:
        self._said = (
            f"refused {settings.phrase.get_secret_value()} {settings.combination} {settings.extra} {settings.endpoint} "
            f"{settings.quoted.get_secret_value()}"
        )
        super().__init__(context, workers=1)

    def store(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        raise RuntimeError(self._said)

    def load(self, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        raise RuntimeError(self._said)

    def contains(self, key: ObjectKey) -> bool:
        raise RuntimeError(self._said)


def open_vault(settings: VaultSettings, context: AdapterContext) -> L2Adapter:
    if settings.region == "nowhere":
        raise RuntimeError(f"no vault opens with {settings.phrase.get_secret_value()} at {settings.endpoint}")
    return Vault(settings, context)


def open_routes(settings: None, context: HttpContext) -> Sequence[HttpRoute]:
    def tell(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer({"secrets": list(SECRETS), "quoted": QUOTED})

    return [HttpRoute("GET", "/vault", tell, "Tells everything.")]


@hookimpl
def lmcache_l2_adapters() -> Sequence[Offer]:
    return [Offer("vault", "for tests", f"{__name__}:open_vault", f"{__name__}:VaultSettings")]


@hookimpl
def lmcache_http_routes() -> Sequence[Offer]:
    return [Offer("vault", "for tests", f"{__name__}:open_routes", default=True)]
