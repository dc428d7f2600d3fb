"""The engine port: router, pools, sessions, registrations."""
