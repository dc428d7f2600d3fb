"""The paths of the admin API.  Known without the web framework, which is not yet imported when plugins are opened."""

from __future__ import annotations

from typing import Final

ADMIN_PATHS: Final = (
    "/",
    "/cache/checksums",
    "/cache/clear",
    "/cache/objects",
    "/cache/pin",
    "/cache/pins",
    "/cache/prefetches",
    "/cache/prefetches/{request_id}",
    "/cache/unpin",
    "/clear-cache",
    "/config",
    "/config/adapters",
    "/healthcheck",
    "/l2",
    "/l2/adapters",
    "/l2/adapters/{name}",
    "/l2/adapters/{name}/drain",
    "/l2/adapters/{name}/resume",
    "/l2/deletions/{deletion_id}",
    "/l2/keys",
    "/lmc_version",
    "/loglevel",
    "/openapi.json",
    "/plugins",
    "/quota",
    "/quota/{cache_salt}",
    "/reconfigure/{backend}/l2/status",
    "/reconfigure/{backend}/l2/{operation}",
    "/settings",
    "/settings/{name}",
    "/status",
    "/threads",
    "/version",
)
"""`{name}` matches one part of a path.  A plugin has no method of any of them."""
