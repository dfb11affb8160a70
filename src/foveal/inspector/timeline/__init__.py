"""The timeline of a session: what the model saw at each request, computed from the log."""
