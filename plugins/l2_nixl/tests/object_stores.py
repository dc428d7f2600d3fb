"""Object stores on this machine for the tests: started, asked until they answer, and ended by their process."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lmcache_devkit import free_port

BUCKET: Final = "kvcache"
TIMEOUT_SECONDS: Final = 60.0
AZURITE: Final = "LMCACHE_AZURITE"
"""Names the program `azurite-blob` where it is not on the path."""
_ACCOUNT: Final = "devstoreaccount1"
_PUBLIC_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the account that every Azurite has; its manual prints it."""


@contextmanager
def moto() -> Iterator[Mapping[str, Any]]:
    """`backend_params` of OBJ for a bucket of a moto server."""
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    with _running(command, endpoint):
        with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=10):
            pass
        yield {
            "endpoint_override": endpoint, "scheme": "http", "region": "us-east-1", "bucket": BUCKET,
            "access_key": "access-of-tests", "secret_key": "secret-of-tests", "use_virtual_addressing": "false",
            "req_checksum": "required", "num_threads": "4",
        }  # fmt: skip


def azurite_program() -> str | None:
    """None: it is not installed."""
    return os.environ.get(AZURITE) or shutil.which("azurite-blob")


@contextmanager
def azurite(program: str, folder: Path) -> Iterator[Mapping[str, Any]]:
    """`backend_params` of AZURE_BLOB for a container of an Azurite."""
    port = free_port()
    command = [
        program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder), "--silent",
        "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with _running(command, endpoint):
        _make_container(endpoint)
        yield {
            "container_name": BUCKET,
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_PUBLIC_KEY};"
            f"BlobEndpoint={endpoint};",
        }


@contextmanager
def _running(command: list[str], endpoint: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not _answers(endpoint):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < end, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


def _make_container(endpoint: str) -> None:
    """By the storage service's own protocol: a request that is signed with the shared key."""
    date, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    digest = hmac.new(base64.b64decode(_PUBLIC_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date, "x-ms-version": version, "Content-Length": "0",
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
    }  # fmt: skip
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=10):
        pass
