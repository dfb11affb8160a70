"""Conversations that other products recorded, and our own: read into facts, written out again.

    for recording in read("sessions.jsonl"):
        await store.append(recording.id, list(recording.events()))

Nothing is lost: a line that is not understood is kept in its place as a note, which no model sees, and is counted.
"""

from foveal.transcripts.detection import detect
from foveal.transcripts.own import write_events
from foveal.transcripts.reading import FORMATS, read
from foveal.transcripts.recording import Recorded, Recording, UnreadableTranscript
from foveal.transcripts.writing import write_messages

__all__ = [
    "FORMATS",
    "Recorded",
    "Recording",
    "UnreadableTranscript",
    "detect",
    "read",
    "write_events",
    "write_messages",
]
