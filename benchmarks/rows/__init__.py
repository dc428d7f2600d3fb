"""What is asked of a server.  Each row is a function from a running server to its figures."""
