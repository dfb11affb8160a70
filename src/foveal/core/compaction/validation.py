"""What a draft may speak of: the names in its source, looked up quickly.

Names are looked up as parts of the source, in any case, whole or put together from two or three that occur there
(`Class.method`, a folder and a file). Plain words, hyphenated ones and bare numbers are not names here: a summary
may count and compare. In a thousand events with a megabyte of text this takes some milliseconds.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

from foveal.core.compaction.protocol import Draft
from foveal.core.log.events import Call, Event, ModelSaid, Text, ToolReturned, UserSaid, parts
from foveal.core.reduction.placeholder import names
from foveal.core.tokens.counter import Counter
from foveal.core.wire import original

EDGE: Final = 50_000
"""Characters at each end of a text in which names are looked up."""
UTTERANCE: Final = 500
"""Characters of an utterance that are searched for rare names …"""
SAMPLE: Final = 150
"""… and about how many of them, evenly spaced."""

_NAMELIKE: Final = bytes(
    byte if chr(byte) in "_./:@#-" or (byte < 128 and chr(byte).isalnum()) else 32 for byte in range(256)
)
_HANDLE: Final = re.compile(r"(?<![\w./-])e\d{1,9}(?![\w/])")
_SEPARATOR: Final = re.compile(r"[./:#@\-]+")
_PLACE: Final = re.compile(r"(?::\d+)+(?:-\d+)?$|#L?\d+(?:-L?\d+)?$")
_MIXED: Final = re.compile(r"[A-Za-z]\d|\d[A-Za-z]|^[A-Z]{2,10}-\d{3,}")
_INNER: Final = re.compile(r"[a-z][A-Z]")
_FILE: Final = re.compile(r"[A-Za-z0-9]\.[A-Za-z][A-Za-z0-9]{0,5}$")
_PROSE: Final = re.compile(
    r"\d[\d.,]*-?[A-Za-z]{1,3}|\d+(?:-[a-z]+)+|[A-Za-z]+-\d{1,2}|[a-z]+\d|e\d+(?:[-–]e?\d+)*|[\d.:/\-]+|v?\d+(?:\.\d+)*\+?"
)
"""Amounts, two-step, step-2, handles, dates and versions."""
_COMMON: Final = frozenset({
    "amd64", "arm64", "base64", "devops", "github", "gitlab", "graphql", "http2", "ipv4", "ipv6", "iso-8601",
    "javascript", "latex", "macos", "mysql", "next.js", "node.js", "oauth", "oauth2", "openai", "postgresql",
    "pypi", "python3", "sha256", "sqlite", "typescript", "utf-8", "utf8", "vue.js", "x86_64", "youtube",
})  # fmt: skip
"""Words of the trade that anybody may use."""


class KnownNames:
    """What a draft may speak of: its events, further texts, and names that are shown elsewhere."""

    def __init__(
        self, events: Sequence[Event], *, also: Iterable[str] = (), elsewhere: Set[str] = frozenset()
    ) -> None:
        self.events = events
        self.also = tuple(also)
        self.elsewhere = elsewhere

    @cached_property
    def _bytes(self) -> bytes:
        """All texts in lower case; what people and models said comes first, since most names are found there."""
        texts = sorted(map(_sized, self.events), key=lambda pair: pair[0])
        joined = "\n".join((*(text for _, text in texts), *self.also))
        return joined.encode("utf-8", "surrogatepass").lower()

    @cached_property
    def _joined(self) -> bytes:
        """The same with its words joined alike."""
        return self._bytes.replace(b"-", b"_").replace(b" ", b"_")

    @cached_property
    def _shown(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.elsewhere)

    @cached_property
    def rare(self) -> frozenset[str]:
        """Names that the user or the model wrote, in one or two messages only: what somebody cared about, and no
        other line is likely to tell again. Names that are shown elsewhere are not lost, and do not count."""
        uttered = [event for event in self.events if isinstance(event.fact, (UserSaid, ModelSaid))]
        counts: collections.Counter[bytes] = collections.Counter()
        for event in uttered[:: 1 + len(uttered) // SAMPLE]:
            said = _uttered(event)[:UTTERANCE].encode("utf-8", "surrogatepass")
            counts.update(set(said.translate(_NAMELIKE).split()))
        found: collections.Counter[str] = collections.Counter()
        for word, times in counts.items():
            if times <= 2 and len(word) >= 5:
                for name in names(word.decode()):
                    found[name] += times
        return frozenset(name for name, times in found.items() if times <= 2 and name not in self.elsewhere)

    @cached_property
    def script(self) -> bool:
        """The user writes in another script than Latin."""
        newest = (event for event in reversed(self.events) if isinstance(event.fact, UserSaid))
        return other_script("".join(_uttered(event)[:500] for event in islice(newest, 8))) > 0.5

    def unknown(self, text: str) -> Iterator[str]:
        """The names in a text that stand nowhere here, and handles of events that do not exist."""
        last = max((event.seq for event in self.events), default=0)
        for found in dict.fromkeys(_HANDLE.findall(text)):
            if int(found[1:]) > last and not self._has_word(found):
                yield found
        for name in dict.fromkeys(_identifiers(text)):
            if not (self._has(name) or self._composed(name) or self._alike(name)):
                yield name

    def _has(self, name: str) -> bool:
        return name.lower().encode() in self._bytes or name.lower() in self._shown

    def _alike(self, name: str) -> bool:
        return name.lower().replace("-", "_").encode() in self._joined

    def _has_word(self, word: str) -> bool:
        """It stands there by itself, as far as its first places show."""
        searched, at = word.lower().encode(), -1
        for _ in range(100):
            at = self._bytes.find(searched, at + 1)
            around = (
                self._bytes[max(0, at - 1) : at] + self._bytes[at + len(searched) : at + len(searched) + 1]
            )
            if at < 0 or not any(chr(byte).isalnum() or byte == 95 for byte in around):
                return at >= 0
        return False

    def _composed(self, name: str) -> bool:
        """Put together from at most three names that occur."""
        if not _SEPARATOR.search(name.strip("./:#@-")):
            return len(name) > 5 and name.endswith("s") and self._has(name[:-1])
        used, rest = 0, name.strip("./:#@-")
        while rest and used < 3:
            cuts = [len(rest), *(found.start() for found in reversed(list(_SEPARATOR.finditer(rest))))]
            end = next((end for end in cuts if self._has_bit(rest[:end])), 0)
            if not end:
                return False
            used, rest = used + 1, rest[end:].lstrip("./:#@-")
        return not rest

    def _has_bit(self, bit: str) -> bool:
        return self._has(bit) and (len(bit) > 3 or self._has_word(bit))


def score(summary: str, evidence: KnownNames) -> float | None:
    """The share of the source's rare names that stand in a summary; None when it has none."""
    rare = evidence.rare
    return sum(name in summary for name in rare) / len(rare) if rare else None


def _sized(event: Event) -> tuple[bool, str]:
    """Whether it is a result, and its text, of a long one both ends."""
    text = original(event.fact)
    short = text if len(text) <= 2 * EDGE else text[:EDGE] + "\n" + text[-EDGE:]
    return isinstance(event.fact, ToolReturned), short


def _uttered(event: Event) -> str:
    """What the user or the model said, and the arguments of calls."""
    fact = event.fact
    if not isinstance(fact, UserSaid | ModelSaid):
        return ""
    said = (part for part in parts(fact.content) if isinstance(part, Text | Call))
    return "\n".join(part.text if isinstance(part, Text) else part.arguments for part in said)


def other_script(text: str) -> float:
    """The share of letters that are not Latin; 0 when there are too few to tell."""
    letters = [letter for letter in text if letter.isalpha()]
    return sum(letter > "\u024f" for letter in letters) / len(letters) if len(letters) >= 20 else 0.0


def _identifiers(text: str) -> Iterator[str]:
    """Names in a text that look like code, files or ids, and so must be right."""
    for found in names(text):
        for name in (found,) if "://" in found else found.replace("::", "/").split(":"):
            name = _PLACE.sub("", name).strip(".:-#/@") if not name.startswith("/") else _PLACE.sub("", name)
            if len(name) >= 5 and name.lower() not in _COMMON and _like_code(name):
                yield name


def _like_code(name: str) -> bool:
    if _PROSE.fullmatch(name):
        return False
    if "_" in name or _INNER.search(name) or _FILE.search(name):
        return True
    return bool(_MIXED.search(name)) or (name.startswith("/") and name.count("/") > 1) or name.count("/") > 2


# ── check ─────────────────────────────────────────────────────────────────────────────────────────
# Whether a draft can stand in for what it summarises. Pure, and quick: a few milliseconds for a thousand events.
#
# A draft is unusable when it is empty, only thinks, was cut off, calls tools, lacks a section, or is not smaller than
# what it replaces. It is to be improved when it is larger than asked, speaks another language than the user, or names
# identifiers and paths that occur nowhere in its source: such names are never let through. A second draft is asked
# for with the faults; if names are all that is wrong with it then, the lines with them are taken out.

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


class DraftReading(msgspec.Struct, frozen=True, kw_only=True):
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
    draft: Draft, *, evidence: KnownNames, sections: Sequence[str], most: int, before: int, counter: Counter
) -> list[str]:
    """All that is wrong with a draft, in sentences; nothing when it can be used as it is."""
    return read(draft, evidence=evidence, sections=sections, most=most, before=before, counter=counter).faults


def read(
    draft: Draft, *, evidence: KnownNames, sections: Sequence[str], most: int, before: int, counter: Counter
) -> DraftReading:
    """A draft with its faults; `most` units are allowed, and it must stay below `before`."""
    text, closed = inside(draft.text)
    missing = [name for name in sections if not has_section(text, name)]
    form = list(_form(draft, text, missing, closed=closed))
    if form:
        return DraftReading(text=text, form=tuple(form))
    units = counter.count(text)
    if units >= before:
        form.append(f"It takes {units:,} tokens, and what it replaces takes {before:,}.")
    return DraftReading(
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


def _foreign(text: str, evidence: KnownNames) -> str:
    prose = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if evidence.script and len(prose) > 60 and other_script(prose) < 0.05:
        return "It is not in the language in which the user speaks."
    return ""
