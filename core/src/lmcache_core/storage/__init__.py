"""The verbs that request modules use."""
