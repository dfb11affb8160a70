"""Original text of an event: all of it, unchanged, whatever requests show (`Context.original`)."""

from __future__ import annotations

from foveal.core.log.events import AnyFact, AnyPart, Call, Content, Media, Opaque, Text, Thinking


def original_text(fact: AnyFact) -> str:
    """Return all text of a fact, unchanged; each part starts on a new line."""
    content: Content | None = getattr(fact, "content", None)
    if content is None:
        return str(getattr(fact, "text", "") or getattr(fact, "summary", ""))
    return content if isinstance(content, str) else "\n".join(map(_original_part, content))


def _original_part(part: AnyPart) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case Call():
            return f"{part.name} {part.arguments}"
        case Media():
            return f"[{part.mime or 'media'}, {part.size:,} bytes]"
        case Opaque():
            return bytes(part.native).decode("utf-8", "replace")
