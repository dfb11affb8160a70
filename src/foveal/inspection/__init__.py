"""What the inspector shows of a session, computed from its log."""
