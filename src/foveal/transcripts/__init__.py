"""Conversations that other products recorded, and our own: read into facts, written out again.

    for recording in read("sessions.jsonl"):
        await store.append(recording.id, list(recording.events()))

Nothing is lost: a line that is not understood is kept in its place as a note, which no model sees, and is counted.
"""

from foveal.transcripts.foveal import write_events
from foveal.transcripts.message_lists import write_messages
from foveal.transcripts.read import FORMATS, detect, read
from foveal.transcripts.transcript import Recorded, Transcript, UnreadableTranscript

__all__ = [
    "FORMATS",
    "Recorded",
    "Transcript",
    "UnreadableTranscript",
    "detect",
    "read",
    "write_events",
    "write_messages",
]
