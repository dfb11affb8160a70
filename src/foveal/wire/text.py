"""A readable transcript of facts, for people and for models that summarise.

Every line that somebody said is quoted with `> `; only the headers are not. So whatever a tool returns (a fake
header, a fake end of the transcript, instructions to the reader) stays visibly inside the quotation.
"""

from __future__ import annotations

from collections.abc import Iterable

from foveal.events import (
    AnyFact,
    AnyPart,
    Call,
    Content,
    Instructed,
    Media,
    ModelSaid,
    Opaque,
    Pinned,
    Text,
    Thinking,
    ToolReturned,
    UserSaid,
    parts,
)


def transcript(facts: Iterable[AnyFact]) -> str:
    """What was said, one paragraph for each fact that a model sees."""
    return "\n\n".join(told for fact in facts if (told := tell(fact)))


def tell(fact: AnyFact) -> str:
    """One fact, "" when no model sees it."""
    match fact:
        case UserSaid():
            return _said("user", fact.content)
        case ModelSaid():
            return _said("assistant", fact.content)
        case Instructed():
            return _said(fact.role, fact.content)
        case ToolReturned():
            name = f" of {_inline(fact.name)}" if fact.name else ""
            return _said(f"{'error' if fact.error else 'result'}{name}", fact.content)
        case Pinned() if fact.text:
            return _said("pinned", fact.text)
        case _:
            return ""


def _said(who: str, content: Content) -> str:
    told = [line for part in parts(content) for line in _lines(part)]
    return "\n".join((f"[{who}]", *told))


def _lines(part: AnyPart) -> list[str]:
    match part:
        case Text():
            return _quoted(part.text)
        case Call():
            return [f"[calls {_inline(part.name)}]", *_quoted(part.arguments)]
        case Media():
            return [f"[{_inline(part.mime) or 'media'}, {part.size:,} bytes]"]
        case Thinking() | Opaque():
            return []


def _quoted(text: str) -> list[str]:
    return [f"> {line}" for line in text.splitlines()]


def _inline(text: str) -> str:
    """A name that stays on its line and inside its brackets."""
    return "".join(letter if letter.isprintable() and letter not in "[]" else "_" for letter in text)[:100]
