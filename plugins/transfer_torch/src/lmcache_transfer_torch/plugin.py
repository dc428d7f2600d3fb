"""What this distribution offers."""

from __future__ import annotations

from collections.abc import Sequence

from lmcache_core import Offer, SettingGroup, hookimpl


@hookimpl
def lmcache_request_modules() -> Sequence[Offer]:
    return [
        Offer(
            name="lmcache_driven",
            summary="The server copies between L1 and the engine's paged KV cache, in host or GPU memory",
            settings="lmcache_transfer_torch.config:TransferSettings",
            open="lmcache_transfer_torch.module:open_lmcache_driven",
            operations=("register_kv_cache", "unregister_kv_cache", "store", "retrieve"),
        )
    ]


@hookimpl
def lmcache_settings() -> Sequence[SettingGroup]:
    module = "lmcache_transfer_torch.settings"
    return [
        SettingGroup("Server-driven transfer", f"{module}:TransferFlags", f"{module}:apply"),
        SettingGroup("L1 in a file", f"{module}:FileFlags", f"{module}:apply_file"),
    ]


@hookimpl
def lmcache_l1_memories() -> Sequence[Offer]:
    return [
        Offer(
            name="file",
            summary="L1 in a file on a fast disk, which GPU copies reach past the page cache",
            settings="lmcache_transfer_torch.file_memory:FileMemorySettings",
            open="lmcache_transfer_torch.file_memory:open_file_memory",
        )
    ]
