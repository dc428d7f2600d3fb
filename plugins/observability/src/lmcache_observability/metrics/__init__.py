"""The subscriber `metrics`: exact totals from the server's readings, distributions from its events."""
