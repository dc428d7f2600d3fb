"""Patterns of requests that eviction policies are compared on."""
