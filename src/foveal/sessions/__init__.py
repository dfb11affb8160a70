"""Durable sessions: the engine with its log in a store."""

from foveal.sessions.background_compaction import RANGE_CHANGED
from foveal.sessions.event_writer import SessionOptions
from foveal.sessions.session import Session, events_in_memory

__all__ = ["RANGE_CHANGED", "Session", "SessionOptions", "events_in_memory"]
