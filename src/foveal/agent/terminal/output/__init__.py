"""Terminal output of the chat."""
