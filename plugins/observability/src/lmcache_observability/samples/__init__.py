"""What a server counts, as samples: names, units and texts of its metrics, one file for each part of the server."""
