"""What ends a stock engine that no server could have kept alive; an operator starts it again, and so do tests under load."""

from __future__ import annotations

KNOWN_ENDS = {
    "assert req_id in self.requests": "a client left in the very step that loaded its chunks: the connector reports that "
    "request as received and as sent, and the scheduler has forgotten it by then",
    "PREPARE_STORE timed out": "the server was killed with a prepare_store in its hands: the connector waits for the "
    "answer, and ends the engine when it does not come",
}


def known_end(log: str) -> str | None:
    """Why the engine with this log has ended, if that is one of the known reasons."""
    return next((reason for sign, reason in KNOWN_ENDS.items() if sign in log), None)
