"""Settings of `lmcache_driven`."""

from __future__ import annotations

from pydantic import Field

from lmcache_core import PluginSettings


class TransferSettings(PluginSettings):
    isolated_ipc: bool = Field(
        False, description="GPU memory and events are shared as plain CUDA handles; engines need the same setting."
    )
    null_block_id: int = Field(0, ge=0, description="ID of an engine's null (padding) block.")
    separate_object_groups: bool = Field(
        False, description="Layers that attend to a window only are objects of their own."
    )
    copy_threads: int = Field(
        1, ge=1, le=2, description="Threads that copy one large transfer in host memory; needs lmcache-native."
    )
