"""Which adapter an object is loaded from."""
