"""Command line, settings, plugin loading, and the composition root."""
