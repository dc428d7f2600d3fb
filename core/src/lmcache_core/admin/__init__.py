"""The HTTP API for operators."""
