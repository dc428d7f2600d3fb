"""The subscriber `metrics`: exact totals from the server's samples, distributions from its events."""
