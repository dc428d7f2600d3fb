"""Becomes a sidecar program, which dies with the server, however the server dies.

A script of its own, run by path without site packages: what is done between fork and exec in a server with many threads
must not take a lock.  Arguments: the server's pid, then the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
CANNOT_RUN: Final = 127


def main(server_pid: int, command: list[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:  # it died before that
        return
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
