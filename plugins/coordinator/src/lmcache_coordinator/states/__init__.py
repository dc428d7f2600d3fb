"""Where a coordinator keeps what operators said."""
