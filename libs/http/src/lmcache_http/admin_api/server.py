"""What callers are answered about the server itself, and what they send to change its log."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import ConfigDict, Field

from lmcache_http.models import Answer, RequestBody

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
_VERSION: Final = "0.1.0"


class Alive(Answer):
    """The server answers."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "ok", "service": "lmcache", "version": _VERSION}]}
    )

    status: str = "ok"
    service: str = "lmcache"
    version: str


class Serving(Answer):
    """`degraded`: the server serves, and something beside it does not work.  `reason` is there only then: shown to those who
    are let in, and null to others."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"status": "healthy"},
                {"status": "degraded", "reason": "adapter fs: its file system is full"},
            ]
        }
    )

    status: Literal["healthy", "degraded"] = "healthy"
    reason: str | None = None


class Unhealthy(Answer):
    """`reason` is null for clients that are not let in."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"status": "unhealthy", "reason": "thread store: it is down: MemoryError: no memory"}]
        }
    )

    status: Literal["unhealthy"] = "unhealthy"
    reason: str | None


class Status(Answer):
    """Everything that the server says of itself.  Sections and figures may be added, and are of this moment."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"state": "healthy", "healthy": True, "reason": "", "conditions": []}]},
    )


class ApiDescription(Answer):
    """An OpenAPI 3.1 document."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"openapi": "3.1.0"}]})

    openapi: str


class Version(Answer):
    """`contract` is the major version of what plugins import; `native` tells the compiled inner loops in use."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"version": _VERSION, "contract": 1, "python": "3.11.2", "native": False, "instance_id": "node-7"}
            ]
        }
    )

    version: str
    contract: int
    python: str
    native: bool
    instance_id: str


class Setting(Answer):
    """`source` is flag, environment, file, default or, for what was changed while the server ran, runtime; `given_by` names
    the flag, the variable or the file.  Secrets are asterisks."""

    name: str
    value: Any
    source: str
    given_by: str
    default: Any


class Configuration(Answer):
    """Every setting, in the order of `lmcache server --help`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "settings": [
                        {
                            "name": "port",
                            "value": 5600,
                            "source": "flag",
                            "given_by": "--port",
                            "default": 5555,
                        }
                    ]
                }
            ]
        }
    )

    settings: list[Setting]


class ConfiguredAdapter(Answer):
    """`index` is its place in the order of loads; `settings` are those it was opened with, without secrets."""

    index: int
    name: str
    type_name: str
    tier: Literal["l2"] = "l2"
    settings: dict[str, Any]


class ConfiguredAdapters(Answer):
    """The storage backends that are in use."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "adapters": [
                        {
                            "index": 0,
                            "name": "fs",
                            "type_name": "fs",
                            "tier": "l2",
                            "settings": {"type": "fs", "base_path": "/var/lib/lmcache"},
                        }
                    ]
                }
            ]
        }
    )

    adapters: list[ConfiguredAdapter]


class OfferRow(Answer):
    kind: str
    name: str
    summary: str
    default: bool
    capabilities: list[str]


class PluginAnswer(Answer):
    """One plugin, as in `lmcache plugins list --json`; `hooks` are the functions of it that are called."""

    name: str
    module: str
    distribution: str | None
    version: str | None
    origin: str
    status: str
    error: str | None
    remedy: str | None
    conflicts: list[str]
    setup_ms: float | None
    hooks: list[str]
    offers: list[OfferRow]


class Plugins(Answer):
    """Every plugin that was found, loaded or not."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "plugins": [
                        {
                            "name": "l2_fs",
                            "module": "lmcache_l2_fs.plugin",
                            "distribution": "lmcache-l2-fs",
                            "version": _VERSION,
                            "origin": "installed",
                            "status": "active",
                            "error": None,
                            "remedy": None,
                            "conflicts": [],
                            "setup_ms": 1.5,
                            "hooks": ["lmcache_l2_adapters"],
                            "offers": [],
                        }
                    ]
                }
            ]
        }
    )

    plugins: list[PluginAnswer]


class ThreadRow(Answer):
    """`state` is the kernel's word (R runs, S sleeps, D waits for a disk); `cpu_seconds` what it has used so far; both are null
    where the kernel does not say.  `supervised` is null for a thread that is not started again.  `stack` names functions,
    innermost last, and never values."""

    name: str
    native_id: int | None
    daemon: bool
    python: bool
    state: str | None
    cpu_seconds: float | None
    supervised: dict[str, Any] | None
    stack: list[str]


class Threads(Answer):
    """Every thread of the process, those of libraries included, with the busiest first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "threads": [
                        {
                            "name": "router",
                            "native_id": 4242,
                            "daemon": True,
                            "python": True,
                            "state": "S",
                            "cpu_seconds": 12.5,
                            "supervised": {"running": True, "restarts": 0, "last_error": ""},
                            "stack": ["lmcache_core.server.router:141 Router.run"],
                        }
                    ]
                }
            ]
        }
    )

    threads: list[ThreadRow]


class LoggerLevel(Answer):
    """`own` is null where the level comes from the logger above."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"logger": "lmcache_core", "own": None, "effective": "INFO"}]}
    )

    logger: str
    own: str | None
    effective: str


class LoggerLevels(Answer):
    """Loggers with a level of their own, `root` among them."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"loggers": [{"logger": "root", "own": "INFO", "effective": "INFO"}]}]}
    )

    loggers: list[LoggerLevel]


class SetLevel(RequestBody):
    """From now on and until the server ends.  Loggers of libraries can be made to log what they are given, secrets included, so
    that levels below INFO are for a short while."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"logger": "lmcache_core.controllers", "level": "DEBUG"}]}
    )

    logger: str = Field("root", min_length=1, max_length=200, description="Its name, such as lmcache_core.controllers.")
    level: Level | None = Field(description="Null: the level of the logger above counts again.")
