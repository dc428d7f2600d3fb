"""A client of the engine protocol, for tools and tests."""
