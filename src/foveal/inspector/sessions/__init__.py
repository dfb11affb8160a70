"""Sessions of the inspector: which there are, what is known of each, and changes of them."""
