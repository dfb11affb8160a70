"""Stand-ins, history builders and helpers that several tests share."""
