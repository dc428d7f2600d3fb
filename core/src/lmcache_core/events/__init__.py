"""The event bus: a bounded queue and a thread for each subscriber."""
