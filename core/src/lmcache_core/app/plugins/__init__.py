"""Plugins: found, chosen, loaded, connected, and what they offer."""
