"""Looks at a machine and a configuration before a server runs there: one probe for each file, each a function from a context
to results."""
