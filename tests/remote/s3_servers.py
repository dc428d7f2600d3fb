"""S3 servers of this machine, for as long as a test needs one: moto (in memory) and rclone (a directory)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.config import Config

from lmcache_devkit import free_port

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
REGION: Final = "us-east-1"
BUCKET: Final = "kvcache"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server and its one bucket, which is there."""

    host: str
    """`127.0.0.1:port`."""
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str = BUCKET
    region: str = REGION
    scheme: str = "http"
    ca_file: Path | None = None
    pid: int = 0
    """To stop it and let it go on (SIGSTOP, SIGCONT): a backend that does not answer."""
    data: Path | None = None
    """Where its objects lie; None: in its memory."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    def settings(self, **more: Any) -> dict[str, Any]:
        """What an operator writes for the adapter `s3`, with little of everything, as suits a test."""
        tls = {"ca_file": str(self.ca_file)} if self.scheme == "https" else {"disable_tls": True}
        return {
            "s3_endpoint": f"{self.host}/{self.bucket}",
            "s3_region": self.region,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "s3_num_io_threads": 2,
            **tls,
            **more,
        }

    def client(self, **more: Any) -> Any:
        """A client of boto3 that sees what the adapter sees; the caller closes it."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            verify=str(self.ca_file) if self.ca_file else None,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}, read_timeout=20, **more),
        )


@contextmanager
def moto_server(folder: Path, *, bucket: str = BUCKET) -> Iterator[S3Server]:
    """In memory; takes any credentials, knows `If-None-Match`, and is an STS, too.  `folder` gets its log."""
    program = _program("moto_server")
    port = free_port()
    server = S3Server(f"127.0.0.1:{port}", "AKIDEXAMPLE", "moto-secret", bucket)
    with _running([program, "-H", "127.0.0.1", "-p", str(port)], server, folder / "moto.log") as running:
        client = running.client()
        client.create_bucket(Bucket=bucket)
        client.close()
        yield running


@contextmanager
def rclone_server(folder: Path, *, bucket: str = BUCKET, tls: tuple[Path, Path] | None = None) -> Iterator[S3Server]:
    """Objects are files below `folder`; checks credentials, does not know `If-None-Match`.  `tls`: certificate and key."""
    program = _program("rclone")
    data = folder / "data"
    (data / bucket).mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = S3Server(
        f"127.0.0.1:{port}",
        "rclone-key",
        "rclone-secret",
        bucket,
        scheme="https" if tls else "http",
        ca_file=tls[0] if tls else None,
        data=data,
    )
    command = [
        program, "serve", "s3", str(data), "--addr", server.host, "--config", str(folder / "rclone.conf"),
        "--auth-key", f"{server.access_key},{server.secret_key}", "--no-modtime",
    ]  # fmt: skip
    if tls:
        command += ["--cert", str(tls[0]), "--key", str(tls[1])]
    with _running(command, server, folder / "rclone.log") as running:
        yield running


def _program(name: str) -> str:
    """Beside this Python, or on the path.  Skips the test where it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextmanager
def _running(command: Sequence[str], server: S3Server, log: Path) -> Iterator[S3Server]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        _wait_ready(process, server.host, log)
        yield replace(server, pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    """Until it listens.  Fails with the end of its log where it ends before."""
    name, _, port = host.rpartition(":")
    end = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > end:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} did not start: {tail}")
        try:
            with socket.create_connection((name, int(port)), timeout=1):
                return
        except OSError:
            time.sleep(0.05)  # nothing tells when a port is listened on
