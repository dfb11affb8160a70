"""Import and export of recorded conversations, of Foveal and of other products.

    for transcript in read("sessions.jsonl"):
        await store.append(transcript.id, list(transcript.events()))

Nothing is lost: a line that a reader does not understand becomes a note in its place, which no model sees, and is
counted in `Transcript.unknown`.
"""

from foveal.transcripts.foveal import write_events
from foveal.transcripts.message_lists import write_messages, write_view
from foveal.transcripts.read import FORMATS, detect, read
from foveal.transcripts.transcript import TimedFact, Transcript, UnreadableTranscript

__all__ = [
    "FORMATS",
    "TimedFact",
    "Transcript",
    "UnreadableTranscript",
    "detect",
    "read",
    "write_events",
    "write_messages",
    "write_view",
]
