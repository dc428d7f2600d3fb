"""What `lmcache doctor` says of the coordinators that a server is to join."""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_client.errors import LMCacheError
from lmcache_core import CheckResult
from lmcache_fleet.http_connection import HttpConnection, RefusedError, UnreachableError, secured
from lmcache_fleet_member.settings import MemberSettings

_TOKEN_STATUS = (401, 403)


def check(settings: MemberSettings) -> Iterator[CheckResult]:
    """Asks each of them; changes nothing there."""
    for url in settings.urls:
        connection = secured(url, settings.token_file, settings.ca, settings.cert, settings.key)
        try:
            yield _of(connection, url)
        finally:
            connection.close()
    if not settings.l2_event_reporting:
        yield CheckResult(
            "ok",
            "L2 is not reported: quotas over shared L2 would need --coordinator-l2-event-reporting on every server",
        )


def _of(connection: HttpConnection, url: str) -> CheckResult:
    try:
        if connection.ask("GET", "/healthz").json() != {"status": "healthy"}:
            return CheckResult("fail", f"{url} answers, but not as a coordinator", "correct --coordinator-url")
        count = len(connection.ask("GET", "/instances").json()["instances"])
    except RefusedError as error:
        if error.status in _TOKEN_STATUS:
            return CheckResult(
                "fail",
                f"{url} does not take the token: {error}",
                "give --coordinator-token-file a file with a token of that coordinator",
            )
        return CheckResult("fail", f"{url} does not answer as a coordinator: {error}", "correct --coordinator-url")
    except UnreachableError as error:
        return CheckResult(
            "warn", f"{error}: the server serves, and joins when it answers", f"start it: lmcache coordinator, at {url}"
        )
    except (KeyError, TypeError, LMCacheError) as error:
        return CheckResult("fail", f"{url}: {error}", "correct --coordinator-url or --coordinator-token-file")
    return CheckResult("ok", f"{url} answers; {count} servers are registered there")
