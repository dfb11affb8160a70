"""Whether a draft can stand in for what it summarises. Pure, and quick: a few milliseconds for a thousand events.

A draft is unusable when it is empty, only thinks, was cut off, calls tools, lacks a section, or is not smaller than
what it replaces. It is to be improved when it is larger than asked, speaks another language than the user, or names
identifiers and paths that occur nowhere in its source: such names are never let through. A second draft is asked
for with the faults; if names are all that is wrong with it then, the lines with them are taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from foveal.compaction.asking import Draft
from foveal.compaction.evidence import Evidence, other_script
from foveal.tokens import Counter

TOLD: Final = 12
"""So many unknown names are told to the writer."""

_TAG: Final = re.compile(
    r"<(/?)(think|thinking|analysis|scratchpad|reasoning|reflection|thought|summary)\s*>", re.IGNORECASE
)
_OPEN: Final = re.compile(r"<summary>", re.IGNORECASE)
_CLOSE: Final = re.compile(r"</summary\s*>", re.IGNORECASE)
_FAKE: Final = re.compile(
    r"\[(?=\s*foveal\b)|<(?=\||/?\s*(?:system|developer|user|assistant|human|tool|function|summary)\b)",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A draft and what is to be said against it."""

    text: str
    """What it says, without thoughts and tags."""
    units: int = 0
    form: tuple[str, ...] = ()
    """Why it cannot be used."""
    large: str = ""
    foreign: str = ""
    names: tuple[str, ...] = ()
    """What it names and its source does not."""

    @property
    def faults(self) -> list[str]:
        told = ", ".join(f"`{name[:80]}`" for name in self.names[:TOLD])
        unknown = f"It names what does not occur in the conversation: {told}." if told else ""
        return [*self.form, *filter(None, (self.large, self.foreign, unknown))]


def faults(
    draft: Draft, *, evidence: Evidence, sections: Sequence[str], most: int, before: int, counter: Counter
) -> list[str]:
    """All that is wrong with a draft, in sentences; nothing when it can be used as it is."""
    return read(draft, evidence=evidence, sections=sections, most=most, before=before, counter=counter).faults


def read(
    draft: Draft, *, evidence: Evidence, sections: Sequence[str], most: int, before: int, counter: Counter
) -> Reading:
    """A draft with its faults; `most` units are allowed, and it must stay below `before`."""
    text, closed = inside(draft.text)
    missing = [name for name in sections if not has_section(text, name)]
    form = list(_form(draft, text, missing, closed=closed))
    if form:
        return Reading(text=text, form=tuple(form))
    units = counter.count(text)
    if units >= before:
        form.append(f"It takes {units:,} tokens, and what it replaces takes {before:,}.")
    return Reading(
        text=text,
        units=units,
        form=tuple(form),
        large=f"It takes {units:,} tokens; {most:,} are allowed." if units > most else "",
        foreign=_foreign(text, evidence),
        names=tuple(evidence.unknown(text)),
    )


def _form(draft: Draft, text: str, missing: Sequence[str], *, closed: bool) -> Iterator[str]:
    if draft.stop == "refused":
        yield "It was refused."
    if draft.stop == "tools":
        yield "It calls a tool instead of writing."
    if not draft.text.strip():
        yield "It is empty."
    elif not text:
        yield "It holds no summary, only thoughts or tags."
    elif not says_something(text):
        yield "It has headings and nothing under them."
    elif draft.stop == "length" or not (closed or (draft.stop == "end" and not missing)):
        yield "It was cut off: it does not end with </summary>."
    if text and missing:
        yield "It has no section " + ", ".join(f"`## {name}`" for name in missing) + "."


# ── its text ──


def inside(text: str) -> tuple[str, bool]:
    """The summary in an answer, without thoughts and tags; and whether it was closed."""
    said = _aloud(text)
    closing = list(_CLOSE.finditer(said))
    if closing:
        said = said[: closing[-1].start()]
    opening = _OPEN.search(said)
    if opening:
        said = said[opening.end() :]
    return plain(_CLOSE.sub("", _OPEN.sub("", said)).strip()), bool(closing)


def _aloud(text: str) -> str:
    """An answer without the thoughts in front of its summary, begun and ended or not."""
    kept, start, thought = "", 0, ""
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if thought:
            if tag[1] and name == thought:
                thought, start = "", tag.end()
        elif name == "summary":
            return kept + text[start:]
        elif tag[1]:
            kept, start = "", tag.end()
        else:
            kept, thought, start = kept + text[start : tag.start()], name, tag.end()
    if not thought:
        return kept + text[start:]
    opening = _OPEN.search(text, start)
    return kept + text[opening.start() :] if opening else kept


def plain(text: str) -> str:
    """A text without control characters, and with nothing that could pass for a role's tag or a line of ours."""
    text = _CONTROL.sub(" ", text.replace("\r\n", "\n"))
    return _FAKE.sub(lambda found: "(" if found[0] == "[" else "‹", text)


def has_section(text: str, name: str) -> bool:
    """Whether a heading stands there, however it is marked up."""
    heading = (
        rf"^[ \t]*(?:#{{1,6}}[ \t]*)?(?:\*\*|__)?{re.escape(name)}(?:\*\*|__)?[ \t]*:?(?:\*\*|__)?[ \t]*$"
    )
    return re.search(heading, text, re.MULTILINE | re.IGNORECASE) is not None


def without(text: str, unknown: Iterable[str]) -> str:
    """A text without the lines that name these; headings stay."""
    gone = tuple(unknown)
    kept = [
        line
        for line in text.split("\n")
        if line.lstrip().startswith("#") or not any(name in line for name in gone)
    ]
    return "\n".join(kept).strip()


def says_something(text: str) -> bool:
    """There is more in it than headings and dashes."""
    return any(len(line.strip(" -*")) > 2 for line in text.split("\n") if not line.lstrip().startswith("#"))


def _foreign(text: str, evidence: Evidence) -> str:
    prose = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if evidence.script and len(prose) > 60 and other_script(prose) < 0.05:
        return "It is not in the language in which the user speaks."
    return ""
