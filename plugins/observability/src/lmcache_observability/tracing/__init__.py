"""One trace for each request of an engine: what the server did for it, when, and for how long."""
