"""Objects of the KV-cache server in an SQLite database."""
