"""Redaction of a transcript before it is stored.

A clipped result is stored as spans of its text. Where redaction changes that text, the spans become the text that
they showed, redacted, so that the view shows the same pieces.
"""

from __future__ import annotations

from msgspec.structs import replace

from foveal.core.log.events import AnyFact, Clipped, Text, ToolReturned
from foveal.core.redaction import redact_fact, scrub, scrub_span
from foveal.transcripts import Transcript
from foveal.transcripts.transcript import TimedFact


def redact_transcript(recording: Transcript) -> Transcript:
    """Return the transcript without its secrets; an unchanged fact is the same object with its time."""
    facts = tuple(_redact(recording, timed) for timed in recording.facts)
    return replace(recording, facts=facts, title=scrub(recording.title))


def _redact(recording: Transcript, timed: TimedFact) -> TimedFact:
    fact, at = timed
    new = redact_fact(fact)
    if isinstance(new, Clipped):
        new = _redact_spans(recording, new)
    return timed if new is fact else (new, at)


def _redact_spans(recording: Transcript, clipped: Clipped) -> Clipped:
    text = _text_of(recording, clipped)
    if scrub(text) is text:
        return clipped
    pieces = (piece if isinstance(piece, str) else scrub_span(text, *piece) for piece in clipped.pieces)
    return replace(clipped, pieces=tuple(pieces))


def _text_of(recording: Transcript, clipped: Clipped) -> str:
    """Return the text of which a clipped result has spans."""
    at = clipped.target - recording.first
    fact: AnyFact | None = recording.facts[at][0] if 0 <= at < len(recording.facts) else None
    content = fact.content if isinstance(fact, ToolReturned) else ""
    if isinstance(content, str):
        return content
    part = content[clipped.part] if 0 <= clipped.part < len(content) else None
    return part.text if isinstance(part, Text) else ""
