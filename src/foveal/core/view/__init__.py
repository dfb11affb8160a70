"""The view: what the model sees, folded from the log."""
