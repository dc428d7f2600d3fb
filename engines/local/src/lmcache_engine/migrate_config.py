"""From a configuration of the public package to this one: `lmcache migrate-config [FILE]`.

Reads the file, or the one that LMCACHE_CONFIG_FILE names, and the LMCACHE_* variables over it.  Ends with 0; 1 where
something is impossible here; 2 where the configuration cannot be read.  Changes nothing, and shows no secret."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from lmcache_client.errors import ConfigError
from lmcache_core import Command, CommandContext, CommandParser
from lmcache_engine.config import FILE_VARIABLE, LMCacheEngineConfig, read_file, variables
from lmcache_engine.config_keys import KEYS, OLD_NAMES, SGLANG_NO_EFFECT, SGLANG_REFUSED, Fate

OK, IMPOSSIBLE, UNREADABLE = range(3)
CLIENT_FILE: Final = "lmcache.yaml"
_IN_URL: Final = re.compile(r"(?<=://)[^\s'\"]*@")
"""Up to the last `@`: passwords may have one, and slashes."""
_NAMES: Final = "passw|secret|token|credential|access_key|api_key"
_SECRET: Final = re.compile(_NAMES, re.IGNORECASE)
_IN_QUERY: Final = re.compile(rf"(?<=[?&])([^=&\s]*(?:{_NAMES})[^=&\s]*=)[^&\s'\"]*", re.IGNORECASE)
_HIDDEN: Final = "***"


class Line(NamedTuple):
    """What becomes of one key that was given."""

    key: str
    outcome: str
    """`used`, `mapped`, `no effect` or `impossible`."""
    text: str


class Migration(NamedTuple):
    settings: dict[str, Any]
    """Of `lmcache server`, or of `open_local`; without what is impossible."""
    engine_arguments: tuple[str, ...]
    """Of vLLM, or of SGLang with lmcache-sglang."""
    lines: list[Line]
    engine: str = "vllm"
    stock_arguments: tuple[str, ...] = ()
    """Of SGLang with its own client of the server."""

    @property
    def is_possible(self) -> bool:
        return all(line.outcome != "impossible" for line in self.lines)


def migrate(
    given: Mapping[str, Any],
    to: str = "server",
    workers: int = 1,
    engine: str = "vllm",
    client_file: str = CLIENT_FILE,
) -> Migration:
    """`given`: keys and values of the public package.  `to`: `server` or `in-process`.  `workers`: how many of an engine's were
    there on the machine; each had the memory that the configuration says, and all of them share one here.  `client_file`: what
    SGLang's own client, or the cache in its process, reads."""
    in_sglang = (engine, to) == ("sglang", "in-process")
    of_server = _SERVER if engine == "sglang" and not in_sglang else ()
    line_of = _line_in_sglang if in_sglang else _line
    lines = [(_server_line if name in of_server else line_of)(name, value) for name, value in given.items()]
    possible = {line.key for line in lines if line.outcome != "impossible"}
    kept = {name: value for name, value in given.items() if name in possible and name not in of_server}
    settings, faults = _settings(kept)
    lines += faults
    if settings and to == "server":
        settings["l1_size_gb"] *= workers
        del settings[
            "plugins"
        ]  # a server uses all that are installed: with names, it would be without HTTP API and metrics
    if engine == "vllm":
        connector = _CONNECTOR | (_of_connector(kept) if to == "server" else _MORE[to])
        return Migration(_shown(settings), ("--kv-transfer-config", json.dumps(connector)), lines)
    client, more = _client_lines(kept)
    if in_sglang:
        file = {"config_file": client_file} if client_file else {}
        linker = _linker({"in_process": True, **file, **client})
        return Migration(_shown(settings), linker, lines + more, engine)
    places = {name: given[name] for name in _SERVER if name in possible and given[name] is not None}
    at = {name.removeprefix("mp_"): _SERVER[name](value) for name, value in places.items()}
    host, port = ({**_DEFAULTS, **settings, **at}[name] for name in _DEFAULTS)
    linker = _linker({"url": f"tcp://{host}:{port}", **client})
    return Migration(_shown(settings | at), linker, lines + more, engine, (*_STOCK, client_file))


def _linker(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of SGLang with lmcache-sglang."""
    about = {"linker": "NodeLinker", "linker_module_path": "lmcache_sglang", "linker_extra_config": extra}
    return (*_LINKER, masked(json.dumps(about)))


_LINKER: Final = (
    "--page-size",
    "64",
    "--enable-unified-cache-external-linker",
    "--unified-cache-external-linker-backend",
    "dynamic",
    "--unified-cache-external-linker-config",
)
_STOCK: Final = ("--enable-lmcache", "--lmcache-config-file")
_CLIENT: Final = "lmcache.mp."
_HEARTBEAT: Final = "lmcache.mp.heartbeat_interval"


def _host(given: Any) -> str:
    """Raises ConfigError for what is not a host of TCP."""
    host = str(given).removeprefix("tcp://").rstrip(":")
    if not re.fullmatch(r"[\w.-]+|\[[\da-fA-F:.]+\]", host):
        raise ConfigError("'mp_host': expected a host of TCP, such as 127.0.0.1")  # not shown: it may have a password
    return host


def _port(given: Any) -> int:
    """Raises ConfigError."""
    port = int(LMCacheEngineConfig({"mp_port": given}).mp_port)
    if not 0 < port < 2**16:
        raise ConfigError(f"'mp_port' is {port}: expected a port, 1 to 65535")
    return port


_SERVER: Final[Mapping[str, Callable[[Any], Any]]] = {"mp_host": _host, "mp_port": _port}
"""Where SGLang's own client finds the server."""
_DEFAULTS: Final = {"host": "127.0.0.1", "port": 5555}


def _server_line(name: str, value: Any) -> Line:
    try:
        _SERVER[name](value)
    except ConfigError as error:
        return Line(name, "impossible", masked(str(error)))
    return Line(name, "mapped", f"`{name.removeprefix('mp_')}` of the server, and `url` of lmcache-sglang")


def _client_lines(kept: Mapping[str, Any]) -> tuple[dict[str, Any], list[Line]]:
    """What `extra_config` says to SGLang's own client, as settings of lmcache-sglang."""
    settings, lines = {}, []
    for name, value in (LMCacheEngineConfig({"extra_config": kept.get("extra_config")}).extra_config or {}).items():
        if name == _HEARTBEAT and isinstance(value, int | float) and value > 0 and value is not True:
            settings["heartbeat_seconds"] = value
            lines.append(Line(name, "mapped", "`heartbeat_seconds` of lmcache-sglang"))
        elif name.startswith(_CLIENT):
            lines.append(Line(name, "no effect", "for --enable-lmcache alone, which reads it from the old file"))
    return settings, lines


_CONNECTOR: Final = {"kv_connector": "LMCacheNodeConnector", "kv_role": "kv_both"}
_MORE: Final[Mapping[str, dict[str, Any]]] = {
    "in-process": {"kv_connector_extra_config": {"lmcache.in_process": True}},
}
"""In-process, the connector reads LMCACHE_CONFIG_FILE itself."""


_OTHERS: Final = ("enable_pd", "enable_p2p", "enable_blending")
"""Keys that ask for more than a cache of its own."""
_BLENDING: Final = [name for name in KEYS if name.startswith("blend_")]


def _settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Line]]:
    """Where they are impossible as a whole, without what needs others, and why."""
    alone = {name: value for name, value in given.items() if OLD_NAMES.get(name, name) not in _OTHERS}
    try:
        return LMCacheEngineConfig(given).server, []
    except ConfigError as error:
        settings = _settings(alone)[0] if len(alone) < len(given) else {}
        return settings, [Line("", "impossible", masked(str(error)))]


def _of_connector(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a server's engines are started with, beside it: who hands over, and who blends."""
    config, found = LMCacheEngineConfig(given), {}
    if config.enable_pd and config.pd_role:
        found["lmcache.pd_role"] = config.role
    if config.enable_blending:
        named = {f"lmcache.{name}": getattr(config, name) for name in _BLENDING}
        found |= {"lmcache.blend": "all", **{name: value for name, value in named.items() if value is not None}}
    return {"kv_connector_extra_config": found} if found else {}


def _line(name: str, value: Any) -> Line:
    try:
        LMCacheEngineConfig({name: value})
    except ConfigError as error:
        return Line(name, "impossible", masked(str(error)))
    key = KEYS[OLD_NAMES.get(name, name)]
    outcome = Fate.USED if key.fate is Fate.REFUSED else key.fate
    text = "the default, which is the same here" if key.fate is Fate.REFUSED else key.text
    return Line(name, outcome.value, f"called '{OLD_NAMES[name]}' now; {text}" if name in OLD_NAMES else text)


def _line_in_sglang(name: str, value: Any) -> Line:
    """Of a cache in SGLang's process."""
    line, key = _line(name, value), OLD_NAMES.get(name, name)
    if line.outcome == "impossible" or getattr(LMCacheEngineConfig({name: value}), key) == KEYS[key].default:
        return line
    if key in SGLANG_REFUSED:
        return Line(name, "impossible", SGLANG_REFUSED[key])
    return Line(name, Fate.NO_EFFECT.value, SGLANG_NO_EFFECT[key]) if key in SGLANG_NO_EFFECT else line


def masked(text: str) -> str:
    """Without the users and passwords of URLs."""
    return _IN_QUERY.sub(rf"\1{_HIDDEN}", _IN_URL.sub(f"{_HIDDEN}@", text))


def _shown(value: Any, name: str = "") -> Any:
    if _SECRET.search(name):
        return _HIDDEN
    if isinstance(value, Mapping):
        return {key: _shown(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return masked(value) if isinstance(value, str) else value


def key_table() -> str:
    """What becomes of every key, as a table of Markdown."""
    rows = [
        f"| `{name}` | {'' if key.default is None else f'`{key.default}`'} | {key.fate.value} | {key.text} |"
        for name, key in KEYS.items()
    ]
    return "\n".join(("| Key | Default | Here | |", "|---|---|---|---|", *rows))


def parser() -> CommandParser:
    made = CommandParser(
        "lmcache migrate-config", "Translate a configuration of the public package, with a line for each key."
    )
    made.add_argument(
        "file", nargs="?", type=Path, help="the YAML file (default: the one that LMCACHE_CONFIG_FILE names)"
    )
    made.add_argument(
        "--to",
        choices=("server", "in-process"),
        default="server",
        help="a server of the node, or the engine's own process (default: %(default)s)",
    )
    made.add_argument(
        "--engine",
        choices=("vllm", "sglang"),
        help="whose arguments are printed (default: sglang where mp_host is given, else vllm)",
    )
    made.add_argument(
        "--workers", metavar="N", type=int, default=1, help="workers of an engine on the machine (default: %(default)s)"
    )
    made.add_argument(
        "--format", choices=("text", "json", "yaml"), default="text", help="of what is printed (default: %(default)s)"
    )
    return made


def run(arguments: Sequence[str], context: CommandContext | None = None) -> int:
    """Returns the exit code.  Raises ConfigError for an invalid argument."""
    return migrated(arguments, os.environ)


def migrated(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """As `run`, with these variables."""
    asked = parser().parse_all(arguments)
    if asked.workers < 1:
        raise ConfigError(f"--workers must be 1 or more, not {asked.workers}")
    path = asked.file or environment.get(FILE_VARIABLE)
    try:
        given = {**(read_file(Path(path)) if path else {}), **variables(environment)}
    except ConfigError as error:
        print(f"migrate-config: {masked(str(error))}", file=sys.stderr)
        return UNREADABLE
    has_server = given.get("mp_host") is not None and asked.to == "server"
    engine = asked.engine or ("sglang" if has_server else "vllm")
    file = str(path or "") if asked.to == "in-process" else str(path) if path and has_server else CLIENT_FILE
    found = migrate(given, asked.to, asked.workers, engine, file)
    print(_written(found, asked.format))
    return OK if found.is_possible else IMPOSSIBLE


def _written(found: Migration, form: str) -> str:
    """`text` is a file for `--config`: lines that are not settings are comments."""
    whole = {
        "settings": found.settings,
        "engine_arguments": list(found.engine_arguments),
        "stock_engine_arguments": list(found.stock_arguments),
        "keys": [line._asdict() for line in found.lines],
    }
    if form == "json":
        return json.dumps(whole, indent=2)
    if form == "yaml":
        return str(yaml.safe_dump(whole, sort_keys=False)).rstrip()
    parts = ["# settings", str(yaml.safe_dump(found.settings, sort_keys=False)).rstrip()]
    of_engine = "vLLM" if found.engine == "vllm" else "SGLang with lmcache-sglang"
    parts += [f"# arguments of {of_engine}", f"#   {shlex.join(found.engine_arguments)}"]
    if found.stock_arguments:
        parts += [f"# or with its own client, {_client_file(found)}", f"#   {shlex.join(found.stock_arguments)}"]
    width = max((len(line.key) for line in found.lines), default=0)
    return "\n".join(
        (*parts, "# keys", *(f"#   {line.key:{width}}  {line.outcome:10}  {line.text}" for line in found.lines))
    )


def _client_file(found: Migration) -> str:
    """What is in the file that SGLang's own client reads."""
    file = found.stock_arguments[-1]
    at = {f"mp_{name}": found.settings.get(name, value) for name, value in _DEFAULTS.items()}
    return "which reads the old file" if file != CLIENT_FILE else f"where {file} has {json.dumps(at)}"


COMMAND: Final = Command(run, lambda: [parser()])
