"""The machine that a run was on, and the limits that it sets to every server."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from demo.server_process import HOST

MEMCPY_BYTES: Final = 128 << 20
ROUND_TRIPS: Final = 4000
MESSAGE: Final = b"x" * 64
_ECHO: Final = """
import socket
with socket.create_connection(({host!r}, {port})) as there:
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := there.recv(64):
        there.sendall(message)
"""


def description() -> dict[str, str]:
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or "unknown",
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def limits() -> dict[str, float]:
    return {"memcpy_gb_s": memcpy_gb_s(), "loopback_us": loopback_us()}


def memcpy_gb_s() -> float:
    """One thread copying 128 MiB between buffers that exist: the limit of any transfer."""
    source, target = np.ones(MEMCPY_BYTES, np.uint8), np.ones(MEMCPY_BYTES, np.uint8)
    taken = []
    for _ in range(9):
        start_time = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - start_time)
    return MEMCPY_BYTES / median(taken) / 1e9


def loopback_us(round_trips: int = ROUND_TRIPS) -> float:
    """The round trip of 64 bytes between two processes over TCP, p50: the limit of any request."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(30)
        program = _ECHO.format(host=HOST, port=listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", program]) as child:
            here, _ = listener.accept()
            with here:
                here.settimeout(30)
                here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                taken = []
                for _ in range(round_trips):
                    start_time = time.perf_counter()
                    here.sendall(MESSAGE)
                    here.recv(len(MESSAGE))
                    taken.append(time.perf_counter() - start_time)
            child.wait(30)
    return median(taken) * 1e6
