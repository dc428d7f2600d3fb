"""`lmcache quota`"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

from lmcache_core.admin.schemas import LIMIT_GB_MAX, QuotaWasDeleted, QuotaWasSet, SaltQuota, SaltQuotas, SaltUse
from lmcache_core.app.admin_client import AdminClient, add_admin_flags
from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.text_table import text_table
from lmcache_core.model.cache_salt import EMPTY_SALT_WORD, parse_salt, salt_text
from lmcache_core.model.errors import ConfigError
from lmcache_core.model.spelling import nearest

COMMANDS: Final = MappingProxyType(
    {
        "set": "limit what a cache salt may use of L1",
        "get": "show one salt's limit and use",
        "list": "show every salt that has a limit or anything in L1",
        "delete": "take a salt's limit away; the default one applies to it then, if there is one",
    }
)


def run(arguments: Sequence[str]) -> ExitCode:
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<6}  {about}" for name, about in COMMANDS.items()]
        more = "`lmcache quota COMMAND --help` says more."
        print("\n".join(["usage: lmcache quota COMMAND ...", "", *lines, "", more]))
        return ExitCode.STOPPED if arguments else ExitCode.USAGE
    name = arguments[0]
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)
        remedy = f"did you mean 'quota {meant}'?" if meant else f"known: {', '.join(COMMANDS)}"
        raise ConfigError(f"no command is called 'quota {name}'; {remedy}")
    given = _parser(name).parse_all(arguments[1:])
    answer, text = _ask(name, given, AdminClient.of(given))
    print(json.dumps(answer, indent=2) if given.json else text)
    return ExitCode.STOPPED


def _parser(name: str) -> Parser:
    about = COMMANDS[name]
    parser = Parser(f"lmcache quota {name}", f"{about[:1].upper()}{about[1:]}.")
    if name != "list":
        parser.add_argument("salt", metavar="SALT", help=f"cache salt; {EMPTY_SALT_WORD} is the empty one")
    if name == "set":
        parser.add_argument(
            "--limit-gb", type=float, required=True, metavar="N", help="GiB of L1 that it may use; 0: it is not cached"
        )
    add_admin_flags(parser)
    return parser


def _ask(name: str, given: Namespace, client: AdminClient) -> tuple[dict[str, Any], str]:
    """The answer as it is, and for people."""
    if name == "list":
        answer = client.ask("GET", "/quota")
        return answer, _all(client.read(answer, SaltQuotas))
    path = _path(given.salt)
    if name == "set":
        if not 0 <= given.limit_gb <= LIMIT_GB_MAX:
            raise ConfigError(f"--limit-gb {given.limit_gb:g}: expected a number of GiB from 0 to {LIMIT_GB_MAX:.0f}")
        answer = client.ask("PUT", path, {"limit_gb": given.limit_gb})
        done = client.read(answer, QuotaWasSet)
        return answer, f"'{done.cache_salt}' may use {_number(done.limit_gb)} GiB of L1"
    if name == "delete":
        answer = client.ask("DELETE", path)
        return answer, f"'{client.read(answer, QuotaWasDeleted).cache_salt}' has no quota of its own any more"
    answer = client.ask("GET", path)
    quota = client.read(answer, SaltQuota)
    return answer, _table([(quota.cache_salt, quota)])


def _path(text: str) -> str:
    try:
        return f"/quota/{quote(salt_text(parse_salt(text)), safe='')}"
    except ValueError as error:
        raise ConfigError(f"SALT {text[:40]!r}: {error}") from None


def _all(quotas: SaltQuotas) -> str:
    table = _table(quotas.users.items())
    if quotas.default_limit_gb is None:
        return table
    return f"{table}\nsalts without a quota of their own: {_number(quotas.default_limit_gb)} GiB each"


def _table(uses: Iterable[tuple[str, SaltUse]]) -> str:
    rows = [("SALT", "LIMIT GIB", "USED GIB", "USED BYTES")]
    rows += [
        (salt, _number(use.limit_gb), _number(use.current_usage_gb), str(use.current_usage_bytes)) for salt, use in uses
    ]
    return "\n".join(text_table(rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")
