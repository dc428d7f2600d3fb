"""What the commands of `lmcache` share: parsing, pages and tables, asking a running server.  The flags of `lmcache server` are
parsed in `app.configuration`."""
