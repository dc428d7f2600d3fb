"""The built-in request modules."""
