"""A Unix socket at a path, which its owner alone may connect to."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from lmcache_client.errors import ResourceError

SCHEME: Final = "ipc://"
MODE: Final = 0o600
_BACKLOG: Final = 128


class UnixListener:
    """Owns the file until `close`, and gives its descriptor away once."""

    def __init__(self, endpoint: str) -> None:
        """Make the file, with its mode.  One that a dead server left is replaced.  Raises ResourceError."""
        self.path = Path(endpoint.removeprefix(SCHEME))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), MODE)  # the file gets the mode of the socket, from its first moment
            self._remove_stale()
            listener.bind(str(self.path))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ResourceError(
                f"--host {endpoint} cannot be opened for engines: {error.strerror or error}; its folder must be there and "
                "writable, and no other server may use it"
            ) from None
        self.descriptor = listener.detach()
        """A listening socket, which the caller owns and closes."""
        self._file = self.path.stat()

    def close(self) -> None:
        """Remove the file, unless another one is there by now."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), self._file):
                self.path.unlink()

    def _remove_stale(self) -> None:
        if not self.path.is_socket():
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:  # nothing listens any more
                self.path.unlink()
