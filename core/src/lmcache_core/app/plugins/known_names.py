"""Names that a user may reasonably give to this server although nothing here answers to them.

A name is in one of these tables so that the answer can be a remedy and not only a refusal.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from lmcache_core.app.plugins.offer_kind import OfferKind

_POLICIES = "lmcache-policies"
_OBSERVABILITY = "lmcache-observability"
_TOOLS = (
    *(f"adapters.{word}" for word in ("add", "drain", "list", "remove", "resume")),
    *("bench.l2", "clear", "completion", "config.set", "describe", "doctor", "keys", "kvcache.clear"),
    *("pins.add", "pins.list", "pins.remove", "prefetch"),
    *("quota.delete", "quota.get", "quota.list", "quota.set", "status"),
)
_L2_PLUGINS = ("dax", "fs", "fs_native", "nixl", "raw_block", "redis", "s3")

DISTRIBUTIONS_OF_OFFERS: Final = MappingProxyType(
    {
        OfferKind.L2_ADAPTER: {
            "fs": "lmcache-l2-fs",
            "fs_native": "lmcache-l2-fs-native",
            "raw_block": "lmcache-l2-raw-block",
            "dax": "lmcache-l2-dax",
            "s3": "lmcache-l2-s3",
            "nixl_store": "lmcache-l2-nixl",
            "nixl_store_dynamic": "lmcache-l2-nixl",
            "mooncake_store": "lmcache-l2-mooncake",
            "redis": "lmcache-l2-redis",
            "mock": "lmcache-devkit",
            "fault_inject": "lmcache-devkit",
        },
        OfferKind.SERDE: dict.fromkeys(("zstd", "fp8", "int8", "int4", "aesgcm"), "lmcache-serde"),
        OfferKind.EVICTION_POLICY: dict.fromkeys(
            (
                "IsolatedLRU",
                "LFU",
                "FIFO",
                "MRU",
                "SLRU",
                "ARC",
                "S3FIFO",
                "SIEVE",
                "W-TinyLFU",
                "LeastHitDensity",
                "noop",
            ),
            _POLICIES,
        ),
        OfferKind.STORE_POLICY: dict.fromkeys(("skip_l1", "second_use"), _POLICIES),
        OfferKind.PREFETCH_POLICY: {"retain": _POLICIES},
        OfferKind.REQUEST_MODULE: {"lmcache_driven": "lmcache-transfer-torch"},
        OfferKind.SUBSCRIBER: dict.fromkeys(("metrics", "tracing", "lookup_hash", "trace"), _OBSERVABILITY),
        OfferKind.HTTP_ROUTES: {"metrics": _OBSERVABILITY},
        OfferKind.SERVICE: {"sidecar": "lmcache-sidecar"},
        OfferKind.COMMAND: {
            "simulate": _POLICIES,
            "trace": _OBSERVABILITY,
            "plugins.check": "lmcache-devkit",
            "plugins.new": "lmcache-devkit",
            **dict.fromkeys(_TOOLS, "lmcache-tools"),
        },
    }
)
"""Offers of this project's own distributions."""

DISTRIBUTIONS_OF_PLUGINS: Final = MappingProxyType(
    {
        **{name: f"lmcache-l2-{name.replace('_', '-')}" for name in _L2_PLUGINS},
        "mooncake_store": "lmcache-l2-mooncake",
        "devkit": "lmcache-devkit",
        "tools": "lmcache-tools",
        "policies": _POLICIES,
        "observability": _OBSERVABILITY,
        "serde": "lmcache-serde",
        "sidecar": "lmcache-sidecar",
        "transfer_torch": "lmcache-transfer-torch",
    }
)
"""Names that `--plugin` may give before the distribution is installed."""

FLAGS_OF_OTHERS: Final = ("--coordinator-", "--p2p-")
"""Beginnings of flags of the public server that nothing here has."""

_FOREIGN_VARIABLES: Final = frozenset(
    {
        "LMCACHE_CHECK",
        "LMCACHE_CHECK_REPORT",
        "LMCACHE_CONFIG_FILE",
        "LMCACHE_DISABLE_BANNER",
        "LMCACHE_HTTP_TOKEN",
        "LMCACHE_LOG_FORMAT",
        "LMCACHE_MP_TRANSFER_MODE",
        "LMCACHE_TRACE_HOOKS",
        "LMCACHE_TRACK_USAGE",
        "LMCACHE_USE_EXPERIMENTAL",
        "LMCACHE_URL",
        "LMCACHE_USE_UPSTREAM_MP",
    }
)
_KUBERNETES_VARIABLE: Final = r"LMCACHE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
_KUBERNETES_ADDRESSES: Final = ("tcp://", "udp://", "sctp://")


def is_foreign_variable(name: str) -> bool:
    """Is `name`, which begins like our settings, none of them on purpose: a switch of ours for finding faults, an
    engine-side library's, or one of Kubernetes' links to services?"""
    return name in _FOREIGN_VARIABLES or re.fullmatch(_KUBERNETES_VARIABLE, name) is not None


def is_service_address(value: str) -> bool:
    """Is this what Kubernetes puts into `<SERVICE>_PORT`?  A service called `lmcache` collides with LMCACHE_PORT."""
    return value.startswith(_KUBERNETES_ADDRESSES)
