"""KV events: engines subscribe to what this server's L1 gains and loses."""

__version__ = "0.1.0"
