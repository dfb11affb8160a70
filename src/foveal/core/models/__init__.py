"""Models: windows, prices, the token budget of a request, and cost."""
