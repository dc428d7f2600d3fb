"""What a running server is and how much fits into it, worked out from `/status`; complete as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lmcache_tools.loose_json import Loose
from lmcache_tools.page import Block, Line, Mood, Table
from lmcache_tools.quantities import count_text, seconds_text, size_text
from lmcache_tools.stored_size import ChunkSize, chunk_size_of

_SETTLED_SECONDS: Final = 60.0
"""A rate of less time says nothing."""


def describe_server(status: Mapping[str, Any]) -> dict[str, Any]:
    """Models that are registered, tiers, and how many tokens of each model fit into each tier if it has it for itself."""
    said = Loose(status)
    models = list(_models(said))
    rate = _stored_bytes_per_second(said, models)
    return {
        "server": {name: value.value for name, value in (said / "server").items()},
        "healthy": (said / "healthy").value,
        "policies": {name: value.value for name, value in (said / "policies").items()},
        "default_quota_bytes": (said / "quotas" / "default_limit_bytes").value,
        "cache_salts": (said / "quotas" / "salts").value,
        "stored_bytes_per_second": rate,
        "models": [_model_record(*model) for model in models],
        "tiers": [_tier(name, used, capacity, models, rate) for name, used, capacity in _capacities(said)],
    }


def description_page(described: Mapping[str, Any]) -> list[Block]:
    """The same in words."""
    said = Loose(described)
    return [*_words(said), Line(), *_models_page(said), Line(), *_tiers_page(said)]


_Model = tuple[str, str, str, int, ChunkSize | None]


def _models(said: Loose) -> Iterator[_Model]:
    """Name, identity, layout of one shard, workers and chunk size, for each model and layout."""
    found: dict[tuple[str, str, str], list[Loose]] = {}
    for worker in said / "workers":
        name, identity, layout = ((worker / field).text() for field in ("model_name", "identity", "layout"))
        found.setdefault((name, identity, layout), []).append(worker)
    for (name, identity, layout), workers in sorted(found.items()):
        shards = len({(worker / "shard").text() for worker in workers})
        yield name, identity, layout, len(workers), chunk_size_of(layout, shards)


def _model_record(name: str, identity: str, layout: str, workers: int, size: ChunkSize | None) -> dict[str, Any]:
    return {
        "model_name": name,
        "identity": identity,
        "layout": layout,
        "workers": workers,
        "shards": size.shards if size else None,
        "chunk_tokens": size.tokens if size else None,
        "object_bytes": size.object_bytes if size else None,
        "chunk_bytes": size.chunk_bytes if size else None,
        "bytes_per_token": size.bytes_per_token if size else None,
    }


def _capacities(said: Loose) -> Iterator[tuple[str, float | None, float | None]]:
    """Name, used and capacity in bytes."""
    yield "L1", (said / "l1" / "used_bytes").number(), (said / "l1" / "capacity_bytes").number()
    for adapter in said / "l2":
        usage = adapter / "usage"
        yield (adapter / "name").text(), (usage / "used_bytes").number(), (usage / "capacity_bytes").number()


def _tier(
    name: str, used: float | None, capacity: float | None, models: list[_Model], rate: float | None
) -> dict[str, Any]:
    return {
        "tier": name,
        "used_bytes": used,
        "capacity_bytes": capacity,
        "full_after_seconds": capacity / rate if capacity and rate else None,
        "tokens": {
            name: {
                "used": size.tokens_in(used) if size and used is not None else None,
                "capacity": size.tokens_in(capacity) if size and capacity is not None else None,
            }
            for name, _, _, _, size in models
        },
    }


def _stored_bytes_per_second(said: Loose, models: list[_Model]) -> float | None:
    """So far, on average; None while there is nothing to average."""
    uptime = (said / "server" / "uptime_seconds").count()
    sizes = [size.object_bytes for _, _, _, _, size in models if size]
    objects = (said / "chunks" / "stored").count()
    if uptime < _SETTLED_SECONDS or not sizes or not objects:
        return None
    return objects * (sum(sizes) / len(sizes)) / uptime


def _words(said: Loose) -> Iterator[Block]:
    server, policies = said / "server", said / "policies"
    l1 = next(iter(said / "tiers"), Loose(None))
    yield Line(
        f"A cache server, version {(server / 'version').text() or 'unknown'}, instance "
        f"{(server / 'instance_id').text() or 'unknown'}, up {seconds_text((server / 'uptime_seconds').count())}."
    )
    if (said / "healthy").value is False:
        yield Line("Something is not as it should be; `lmcache status` says what.", Mood.BAD)
    tokens = (server / "chunk_tokens").number()
    chunks = f"It cuts prompts into chunks of {tokens:.0f} tokens and keeps" if tokens else "It keeps"
    yield Line(f"{chunks} up to {size_text((l1 / 'capacity_bytes').count())} of them in memory (L1).")
    yield Line(
        f"What leaves L1 first is up to policy {(policies / 'eviction').text() or '-'}; what goes to L2 to "
        f"{(policies / 'store').text() or '-'}; where it is loaded from to {(policies / 'prefetch').text() or '-'}."
    )
    adapters = [(tier / "tier").text() for tier in said / "tiers"][1:]
    yield Line(f"L2: {', '.join(adapters)}, asked in this order." if adapters else "There is no L2.")
    default = (said / "default_quota_bytes").number()
    salts = (said / "cache_salts").count()
    limit = "no limit" if default is None else f"a limit of {size_text(default)}"
    yield Line(f"{count_text(salts)} cache salts are known; one without a quota of its own has {limit}.")
    where = [(server / name).text() for name in ("engine_endpoint", "http_endpoint")]
    yield Line(f"Engines connect to {where[0] or '-'}, operators to {where[1] or '-'}.")


def _models_page(said: Loose) -> Iterator[Block]:
    rows = []
    for model in said / "models":
        chunk, token = (model / "chunk_bytes").number(), (model / "bytes_per_token").number()
        rows.append(
            (
                (model / "model_name").text(),
                (model / "identity").text() or "-",
                (model / "workers").text(),
                (model / "shards").text() or "-",
                "-" if chunk is None else size_text(chunk),
                "-" if token is None else size_text(token),
                (model / "layout").text(),
            )
        )
    if rows:
        yield Table(("MODEL", "IDENTITY", "WORKERS", "SHARDS", "CHUNK", "TOKEN", "LAYOUT OF A SHARD"), rows)
    else:
        yield Line("No engine is registered, so that the size of a chunk is not known yet.")


def _tiers_page(said: Loose) -> Iterator[Block]:
    rows = []
    for tier in said / "tiers":
        used, capacity = (tier / "used_bytes").number(), (tier / "capacity_bytes").number()
        lasts = (tier / "full_after_seconds").number()
        sizes = ("-" if used is None else size_text(used), "no limit" if capacity is None else size_text(capacity))
        last = "-" if lasts is None else seconds_text(lasts)
        models = (tier / "tokens").items() or [("-", Loose(None))]
        for model, tokens in models:
            fits = [(tokens / name).number() for name in ("used", "capacity")]
            words = ["-" if count is None else count_text(count) for count in fits]
            rows.append(((tier / "tier").text(), *sizes, model, *words, last))
    yield Table(("TIER", "USED", "CAPACITY", "MODEL", "TOKENS IN USE", "TOKENS THAT FIT", "FULL AFTER"), rows)
    rate = (said / "stored_bytes_per_second").number()
    alone = "Tokens are those of one model that has the tier for itself."
    after = (
        f" At {size_text(rate)} stored per second, as so far, an empty tier is full after that time." if rate else ""
    )
    yield Line(alone + after, Mood.QUIET)
