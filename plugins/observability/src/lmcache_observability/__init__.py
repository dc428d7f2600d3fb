"""What an operator sees: metrics, spans, recorded traces, lookup hashes, and the dashboard."""

__version__ = "0.1.0"
