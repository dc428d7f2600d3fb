"""Settings of the whole server are for services to see, so one looks at them for the module."""

from __future__ import annotations

from lmcache_core import ConfigError, Service, ServiceContext


class BlendLegacyService(Service):
    """Does nothing once the server runs."""

    def __init__(self, settings: None, context: ServiceContext) -> None:
        """Raises ConfigError where `--engine-type blend_legacy` cannot work."""
        mode, types = context.value_at("supported_transfer_mode"), context.value_at("engine_type") or ()
        if "blend_legacy" in types and mode == "engine_driven":
            raise ConfigError(
                "--engine-type blend_legacy has the server copy rows of engines, which --supported-transfer-mode "
                "engine_driven switches off; use auto or lmcache_driven, or --engine-type blend"
            )

    def close(self) -> None:
        """There is nothing to close."""
