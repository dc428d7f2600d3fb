"""The event bus."""
