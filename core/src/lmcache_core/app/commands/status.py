"""`lmcache status`"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from lmcache_core.admin.token import read_token
from lmcache_core.app.command_line import Parser
from lmcache_core.app.exit_code import ExitCode
from lmcache_core.app.text_table import text_table
from lmcache_core.model.errors import ConfigError, LMCacheError

_ANSWER_BYTES: Final = 16 << 20
_TIMEOUT_SECONDS: Final = 10.0


def run(arguments: Sequence[str]) -> ExitCode:
    parser = Parser("lmcache status", "Show the state of a running server.")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="its admin API (default: http://127.0.0.1:8080)")
    parser.add_argument("--json", action="store_true", help="print the answer as it is")
    parser.add_argument(
        "--http-token-file",
        default=os.environ.get("LMCACHE_HTTP_TOKEN_FILE"),
        metavar="FILE",
        help="file with the server's Bearer token (default: LMCACHE_HTTP_TOKEN_FILE)",
    )
    given = parser.parse_all(arguments)
    status = _ask(given.url, read_token(given.http_token_file) if given.http_token_file else None)
    print(json.dumps(status, indent=2) if given.json else "\n".join(text_table(list(_lines(status)))))
    return ExitCode.STOPPED


def _ask(url: str, token: str | None) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"--url {url}: expected an address such as http://127.0.0.1:8080")
    request = Request(url.rstrip("/") + "/status", headers={"Authorization": f"Bearer {token}"} if token else {})
    # a proxy of the environment knows nothing of servers on this machine
    opener: OpenerDirector = build_opener(ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
            status = json.loads(answer.read(_ANSWER_BYTES))
    except HTTPError as error:
        error.close()
        remedy = "; give --http-token-file" if error.code == 401 else ""
        raise LMCacheError(f"{url} answers {error.code} {error.reason}{remedy}") from None
    except (URLError, OSError) as error:
        raise LMCacheError(
            f"{url} does not answer: {getattr(error, 'reason', error)}; is the server running?"
        ) from None
    except ValueError:
        raise LMCacheError(f"{url} answers, but not as the admin API of a cache server") from None
    if not isinstance(status, dict):
        raise LMCacheError(f"{url} answers, but not as the admin API of a cache server")
    return status


def _lines(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted path, text)."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _lines(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for index, inner in enumerate(value):
            yield from _lines(inner, f"{path}[{index}]")
    elif isinstance(value, dict | list):
        yield path, ", ".join(map(str, value)) or "-"
    else:
        yield path, "-" if value in (None, "") else str(value)
