"""What the commands of `lmcache` share: flags, pages and tables, asking a running server."""
