"""Every way of asking is measured against a real server, briefly."""

from __future__ import annotations

from benchmarks import clients
from tests.conftest import StartServer


def test_every_figure_is_there(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.2")
    trips = clients.round_trips(server.port, rounds=1, trips=5)
    assert trips.keys() == clients.WAYS.keys()
    for rows in (trips, clients.prompts(), clients.touches(server.port)):
        assert all(cost.wall_us > 0 for cost in rows.values())
