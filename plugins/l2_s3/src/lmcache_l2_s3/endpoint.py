"""Which bucket at which host, from the ways in which people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal

PathStyle = Literal["auto"] | bool
DEFAULT_BUCKET: Final = "lmcache"
EXPRESS_SUFFIX: Final = "--x-s3"

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_AUTHORITY: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?"
)
_AWS: Final = re.compile(r"(?:(?P<bucket>.+)\.)?(?P<service>s3[.-][a-z0-9.-]*amazonaws\.com(?:\.cn)?)", re.IGNORECASE)
_EXPRESS_HOST: Final = re.compile(r"(?P<bucket>.+--x-s3)\.s3express-[a-z0-9.-]+", re.IGNORECASE)
_EXPRESS_BUCKET: Final = re.compile(r".+--(?P<zone>[a-z0-9-]+)--x-s3")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A bucket and where it is asked for."""

    bucket: str
    service: str | None
    """`host[:port]` of the store; None: that of AWS for the region."""
    tls: bool
    path_style: bool
    """The bucket is the first part of the path, and not of the host's name."""

    @property
    def service_url(self) -> str | None:
        return None if self.service is None else f"{'https' if self.tls else 'http'}://{self.service}"

    def describe(self) -> str:
        return f"bucket '{self.bucket}' at {self.service or 'AWS S3'}"


def parse_endpoint(text: str, *, bucket: str | None, path_style: PathStyle, disable_tls: bool) -> Endpoint:
    """Raises ValueError that says what cannot be read, or what contradicts what, and what to write instead."""
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme.lower() not in ("s3", "http", "https"):
        raise ValueError(
            f"'{scheme}://' is not a scheme of an S3 store: write s3://bucket, host[:port] or host[:port]/bucket"
        )
    if scheme.lower() == "https" and disable_tls:
        raise ValueError("the endpoint begins with https:// and disable_tls is true: leave one of them out")
    tls = not disable_tls and scheme.lower() != "http"
    first, _, path = rest.partition("/")
    path = path.rstrip("/")
    if scheme.lower() == "s3":
        return _aws_bucket(first, path, bucket, path_style, tls)
    if (match := _AUTHORITY.fullmatch(first)) is None or int(match["port"] or 1) not in range(1, 65536):
        raise ValueError(
            f"'{first}' is not a host with or without a port: write s3://bucket, host[:port] or host[:port]/bucket"
        )
    if "/" in path:
        raise ValueError(f"'{path}' is more than a bucket: write host[:port]/bucket, and the rest into 'prefix'")
    host, port = match["host"], match["port"]
    return _on_host(host, f":{port}" if port else "", _agreed(path or None, bucket), path_style, tls)


def _aws_bucket(name: str, path: str, bucket: str | None, path_style: PathStyle, tls: bool) -> Endpoint:
    if path:
        raise ValueError(f"s3://{name}/{path} names more than a bucket: write s3://{name}, and '{path}/' into 'prefix'")
    name = _checked(_agreed(name, bucket) or "")
    # A certificate of AWS covers one label in front of its own name.
    style = (tls and "." in name) if path_style == "auto" else path_style
    return Endpoint(name, None, tls, style)


def _on_host(host: str, port: str, bucket: str | None, path_style: PathStyle, tls: bool) -> Endpoint:
    if match := _EXPRESS_HOST.fullmatch(host):
        return Endpoint(_checked(_agreed(match["bucket"], bucket) or ""), None, tls, False)
    if match := _AWS.fullmatch(host):
        name = _checked(_agreed(match["bucket"], bucket) or _missing(host))
        style = (tls and "." in name) if path_style == "auto" else path_style
        return Endpoint(name, match["service"] + port, tls, style)
    if path_style is not False:
        return Endpoint(_checked(bucket or DEFAULT_BUCKET), host + port, tls, True)
    if _is_address(host):
        raise ValueError(
            f"path_style is false and {host} is an address, which no bucket can be put in front of: give its name"
        )
    if bucket is None:
        label, _, rest = host.partition(".")
        if not rest:
            raise ValueError(f"path_style is false and '{host}' has no first label to be the bucket: set 's3_bucket'")
        return Endpoint(_checked(label), rest + port, tls, False)
    service = host.removeprefix(f"{bucket}.")
    return Endpoint(_checked(bucket), service + port, tls, False)


def _agreed(named: str | None, bucket: str | None) -> str | None:
    if named and bucket and named != bucket:
        raise ValueError(f"the endpoint names bucket '{named}' and 's3_bucket' is '{bucket}': leave one of them out")
    return named or bucket


def _missing(host: str) -> str:
    raise ValueError(f"{host} names no bucket: write s3://bucket, or set 's3_bucket'")


def _checked(bucket: str) -> str:
    if _BUCKET.fullmatch(bucket) is None:
        raise ValueError(f"'{bucket}' is not a name of a bucket: 3 to 63 letters, digits, dots and hyphens")
    return bucket


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def express_service(bucket: str, region: str) -> str:
    """Where AWS serves a bucket of S3 Express One Zone.  Raises ValueError for the name of another one."""
    if (match := _EXPRESS_BUCKET.fullmatch(bucket)) is None:
        raise ValueError(f"bucket '{bucket}' is none of S3 Express One Zone: their names end with --<zone>--x-s3")
    return f"s3express-{match['zone']}.{region}.amazonaws.com"
