"""Asks a server for many answers at once through the stock client, which reads none while it has something to send, and
prints how many it got.  Runs in the engine's environment."""

from __future__ import annotations

import argparse
import sys
import time

import zmq
from lmcache.v1.multiprocess.transport.zmq_impl.mq import MessageQueueClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long answers may take altogether")
    args = parser.parse_args()
    with zmq.Context() as context:
        client = MessageQueueClient(args.url, context)
        sys.setswitchinterval(60.0)  # all requests are queued before the client's own thread sends the first
        futures = [client.submit_request("noop", []) for _ in range(args.requests)]
        sys.setswitchinterval(0.005)
        deadline = time.monotonic() + args.seconds
        answered = sum(future.wait(max(0.0, deadline - time.monotonic())) for future in futures)
        client.close()
    print(answered)


if __name__ == "__main__":
    main()
