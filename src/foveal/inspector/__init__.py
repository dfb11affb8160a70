"""The inspector: pages that show what the model sees of a session, and change it."""
