"""What the `serde` of an `--l2-adapter` asks for, checked against each serde's own settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from lmcache_client.errors import ConfigError
from lmcache_core.app.offer_specs import OfferSpec, offer_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.settings import PluginSettings, validate
from lmcache_core.serde.chain import LINKS_MAX

SERDE: Final = "serde"
_EXAMPLE: Final = '"zstd", {"type": "zstd", "level": 3}, or a list of these'


class SerdeSettings(PluginSettings):
    """What the serdes of one adapter may use of the machine.  Stands beside `serde`."""

    serde_workers: Annotated[
        int, Field(ge=1, le=256, description="Threads that encode and decode; by default one per processor, 4 at most.")
    ] = min(4, os.cpu_count() or 1)
    serde_memory_gb: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Memory for objects between their serdes and the adapter, in GiB: half of it for stores, half for "
            "loads. It is taken as it is needed.",
        ),
    ] = 0.5


@dataclass(frozen=True, slots=True)
class SerdeSpecs:
    """The serdes in the order in which stores go through them, one at least."""

    serdes: tuple[OfferSpec, ...]
    settings: SerdeSettings
    where: str
    """What begins an error about them."""


SERDE_FIELDS: Final = (SERDE, *SerdeSettings.model_fields)
"""Keys of an adapter's object that are not the adapter's own."""


def serde_specs(values: Mapping[str, Any], plugins: LoadedPlugins, where: str) -> SerdeSpecs | None:
    """Those of one adapter, of whose object `where` is the path; None without any.  Raises ConfigError that names the
    path and the field."""
    own = {name: value for name, value in values.items() if name in SerdeSettings.model_fields}
    given = values.get(SERDE)
    if given is None:
        if own:
            raise ConfigError(f"{where}: field '{next(iter(own))}' is for serdes, and field 'serde' names none")
        return None
    settings = validate(SerdeSettings, own, where)
    where = f"{where}.{SERDE}"
    each = given if isinstance(given, list | tuple) else [given]
    if not 0 < len(each) <= LINKS_MAX:
        raise ConfigError(f"{where}: {len(each)} serdes; name 1 to {LINKS_MAX}, or leave the field out")
    paths = [f"{where}[{index}]" if isinstance(given, list | tuple) else where for index in range(len(each))]
    specs = tuple(_spec(one, plugins, path) for one, path in zip(each, paths, strict=True))
    return SerdeSpecs(specs, settings, where)


def serdes_given(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The objects among what an adapter's `serde` was given, right or wrong: they may hold secrets."""
    given = values.get(SERDE)
    return [one for one in (given if isinstance(given, list | tuple) else [given]) if isinstance(one, Mapping)]


def _spec(given: Any, plugins: LoadedPlugins, where: str) -> OfferSpec:
    own = {field: value for field, value in given.items() if field != "type"} if isinstance(given, Mapping) else {}
    name = given.get("type") if isinstance(given, Mapping) else given
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: expected the name of a serde: {_EXAMPLE}")
    return offer_spec(plugins, OfferKind.SERDE, name, own, where)
