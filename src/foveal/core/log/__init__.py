"""The append-only log: event types, their JSON codec, ranges of events."""
