"""Serdes between L1 and an adapter: what the `serde` of an `--l2-adapter` asks for, and how it is opened."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lmcache_client.errors import ConfigError, LMCacheError
from lmcache_client.layout import ChunkLayout, ObjectLayout
from lmcache_core.app.offer_specs import OfferSpec, offer_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_core.contracts.l2_adapter import AdapterContext, L2Adapter
from lmcache_core.contracts.serde import NamedSerde, Serde, SerdeAdapter, SerdeChainContext, SerdeLayouts
from lmcache_core.model.object_header import SERDES_MAX

SERDE: Final = "serde"
_EXAMPLE: Final = '"zstd", {"type": "zstd", "level": 3}, or a list of these'


class SerdeSpecs(msgspec.Struct, frozen=True):
    """The serdes in the order in which stores go through them, one at least."""

    serdes: tuple[OfferSpec, ...]
    chain: OfferSpec
    """What puts them around the adapter."""
    where: str
    """What begins an error about them."""


SERDE_FIELDS: Final = (SERDE, "serde_workers", "serde_memory_gb")
"""Keys of an adapter's object that are not the adapter's own."""
_CHAIN: Final = "chain"
"""The serde that wraps: it puts the others around an adapter."""
LINKS_MAX: Final = SERDES_MAX - 1
"""Most serdes of an adapter: one mark of a header is for padding."""


def serde_specs(values: Mapping[str, Any], plugins: LoadedPlugins, where: str) -> SerdeSpecs | None:
    """Those of one adapter, of whose object `where` is the path; None without any.  Raises ConfigError that names the
    path and the field."""
    own = {name: value for name, value in values.items() if name in SERDE_FIELDS and name != SERDE}
    given = values.get(SERDE)
    if given is None:
        if own:
            raise ConfigError(f"{where}: field '{next(iter(own))}' is for serdes, and field 'serde' names none")
        return None
    inside, where = where, f"{where}.{SERDE}"
    each = given if isinstance(given, list | tuple) else [given]
    if not 0 < len(each) <= LINKS_MAX:
        raise ConfigError(f"{where}: {len(each)} serdes; name 1 to {LINKS_MAX}, or leave the field out")
    paths = [f"{where}[{index}]" if isinstance(given, list | tuple) else where for index in range(len(each))]
    specs = tuple(_spec(one, plugins, path) for one, path in zip(each, paths, strict=True))
    if _CHAIN not in {offer.name for offer in plugins.offers(OfferKind.SERDE)}:
        raise ConfigError(
            f"{where}: the plugin 'serde' of lmcache-serde puts serdes around adapters: {_absent(plugins)}"
        )
    return SerdeSpecs(specs, offer_spec(plugins, OfferKind.SERDE, _CHAIN, own, inside), where)


def _absent(plugins: LoadedPlugins) -> str:
    """Why its offer is not available, and the remedy."""
    try:
        plugins.offer(OfferKind.SERDE, _CHAIN)
    except LMCacheError as error:
        return str(error)
    return "two plugins offer it"


def _spec(given: Any, plugins: LoadedPlugins, where: str) -> OfferSpec:
    own = {field: value for field, value in given.items() if field != "type"} if isinstance(given, Mapping) else {}
    name = given.get("type") if isinstance(given, Mapping) else given
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: expected the name of a serde: {_EXAMPLE}")
    if name == _CHAIN:
        raise ConfigError(f"{where}: '{_CHAIN}' is what puts serdes around an adapter; name the serdes: {_EXAMPLE}")
    return offer_spec(plugins, OfferKind.SERDE, name, own, where)


def open_behind_serdes(
    specs: SerdeSpecs,
    plugins: LoadedPlugins,
    context: AdapterContext,
    layouts: SerdeLayouts,
    open_inner: Callable[[AdapterContext], L2Adapter],
) -> L2Adapter:
    """An adapter with its serdes around it.  The caller closes it.  Raises LMCacheError, with nothing left open."""
    serdes = [NamedSerde(spec.name, spec.open_as(Serde, plugins)) for spec in specs.serdes]
    chain = SerdeChainContext(serdes, context, layouts, specs.where, open_inner)
    adapter: L2Adapter = specs.chain.open_as(SerdeAdapter, plugins, chain)
    return adapter


LAYOUTS_MAX: Final = 4096
"""Beyond it, those that were registered longest ago are forgotten."""


class KnownLayouts:
    """Implements `contracts.serde.SerdeLayouts`.

    Remembers a layout for longer than the worker that registered it, because its objects may be on their way still.
    Any thread; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes of the two below
        self._by_fingerprint: OrderedDict[bytes, ChunkLayout] = OrderedDict()
        self._listeners: tuple[Callable[[ChunkLayout], None], ...] = ()

    def learn(self, layout: ChunkLayout) -> None:
        """A worker stores and retrieves such chunks from now on.  Listeners are called with one that is new."""
        with self._lock:
            is_new = layout.fingerprint not in self._by_fingerprint
            self._by_fingerprint[layout.fingerprint] = layout
            self._by_fingerprint.move_to_end(layout.fingerprint)
            if len(self._by_fingerprint) > LAYOUTS_MAX:
                self._by_fingerprint.popitem(last=False)
            listeners = self._listeners if is_new else ()
        for listener in listeners:
            listener(layout)

    def elements(self, fingerprint: bytes, payload_bytes: int) -> ObjectLayout | None:
        layout = self._by_fingerprint.get(fingerprint)
        return layout if isinstance(layout, ObjectLayout) and layout.payload_bytes == payload_bytes else None

    def all(self) -> tuple[ChunkLayout, ...]:
        with self._lock:
            return tuple(self._by_fingerprint.values())

    def listen(self, listener: Callable[[ChunkLayout], None]) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def ignore(self, listener: Callable[[ChunkLayout], None]) -> None:
        with self._lock:
            self._listeners = tuple([each for each in self._listeners if each != listener])
