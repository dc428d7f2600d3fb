"""The engine port: the router, the operations of the protocol (`*_module`), registrations of workers, hashing of prompts."""
