"""The dashboard: one page, and the figures that it shows."""
