"""Validation of a summary draft against the events that it summarises.

1. A draft is unusable when it is empty, contains only thinking, was cut off, calls tools, lacks a section, or is
   not smaller than what it replaces.
2. A draft is to be improved when it is larger than asked for, is in another language than the user's, or names
   identifiers and paths that do not occur in its source (`KnownNames`). A second draft is requested with the
   faults; if unknown names are its only fault, the lines with them are removed. Unknown names are never accepted.
3. Names are looked up in the source as substrings, ignoring case, whole or composed of two or three names that
   occur there (`Class.method`, a folder and a file). Plain words, hyphenated words and bare numbers do not count
   as names: a summary may count and compare.

Validation is pure and takes a few milliseconds for a thousand events with a megabyte of text.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.log.events import Call, Event, ModelSaid, Text, ToolReturned, UserSaid, parts
from foveal.core.tokens.counter import Counter
from foveal.core.view.text_facts import find_names
from foveal.core.wire import original_text

MAX_EDGE_CHARS: Final = 50_000
"""Characters at each end of a text in which names are looked up."""
MAX_UTTERANCE_CHARS: Final = 500
"""Characters of a message that are searched for rare names."""
RARE_NAME_SAMPLE: Final = 150
"""Messages, about, that are searched for rare names, evenly spaced."""

# ── Names in the source ──────────────────────────────────────────────────────────────────────────────────

_NAME_BYTES: Final = bytes(
    byte if chr(byte) in "_./:@#-" or (byte < 128 and chr(byte).isalnum()) else 32 for byte in range(256)
)
_HANDLE: Final = re.compile(r"(?<![\w./-])e\d{1,9}(?![\w/])")
_SEPARATOR: Final = re.compile(r"[./:#@\-]+")
_LINE_NUMBER: Final = re.compile(r"(?::\d+)+(?:-\d+)?$|#L?\d+(?:-L?\d+)?$")
_LETTER_AND_DIGIT: Final = re.compile(r"[A-Za-z]\d|\d[A-Za-z]|^[A-Z]{2,10}-\d{3,}")
_CAMEL_CASE: Final = re.compile(r"[a-z][A-Z]")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9]\.[A-Za-z][A-Za-z0-9]{0,5}$")
_NOT_A_NAME: Final = re.compile(
    r"\d[\d.,]*-?[A-Za-z]{1,3}|\d+(?:-[a-z]+)+|[A-Za-z]+-\d{1,2}|[a-z]+\d|e\d+(?:[-–]e?\d+)*|[\d.:/\-]+|v?\d+(?:\.\d+)*\+?"
)
"""Amounts, `two-step`, `step-2`, handles, dates and versions."""
_COMMON_TERMS: Final = frozenset({
    "amd64", "arm64", "base64", "devops", "github", "gitlab", "graphql", "http2", "ipv4", "ipv6", "iso-8601",
    "javascript", "latex", "macos", "mysql", "next.js", "node.js", "oauth", "oauth2", "openai", "postgresql",
    "pypi", "python3", "sha256", "sqlite", "typescript", "utf-8", "utf8", "vue.js", "x86_64", "youtube",
})  # fmt: skip
"""Technical terms that a draft may use without a source."""


class KnownNames:
    """The names a draft may use: those in its events, in further texts, and those shown elsewhere."""

    def __init__(
        self, events: Sequence[Event], *, also: Iterable[str] = (), elsewhere: Set[str] = frozenset()
    ) -> None:
        self.events = events
        self.also = tuple(also)
        self.elsewhere = elsewhere

    @cached_property
    def _bytes(self) -> bytes:
        """All texts in lower case; user and model messages come first, since most names are found there."""
        texts = sorted(map(_source_text, self.events), key=lambda pair: pair[0])
        joined = "\n".join((*(text for _, text in texts), *self.also))
        return joined.encode("utf-8", "surrogatepass").lower()

    @cached_property
    def _joined(self) -> bytes:
        """The same with words joined by underscores only."""
        return self._bytes.replace(b"-", b"_").replace(b" ", b"_")

    @cached_property
    def _shown(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.elsewhere)

    @cached_property
    def rare_names(self) -> frozenset[str]:
        """Names that the user or the model wrote in one or two messages only.

        They mattered, and other lines are unlikely to repeat them. Names that are shown elsewhere are not lost and
        do not count."""
        messages = [event for event in self.events if isinstance(event.fact, (UserSaid, ModelSaid))]
        counts: collections.Counter[bytes] = collections.Counter()
        for event in messages[:: 1 + len(messages) // RARE_NAME_SAMPLE]:
            text = _message_text(event)[:MAX_UTTERANCE_CHARS].encode("utf-8", "surrogatepass")
            counts.update(set(text.translate(_NAME_BYTES).split()))
        found: collections.Counter[str] = collections.Counter()
        for word, times in counts.items():
            if times <= 2 and len(word) >= 5:
                for name in find_names(word.decode()):
                    found[name] += times
        return frozenset(name for name, times in found.items() if times <= 2 and name not in self.elsewhere)

    @cached_property
    def is_non_latin(self) -> bool:
        """Whether the user writes in another script than Latin."""
        newest = (event for event in reversed(self.events) if isinstance(event.fact, UserSaid))
        return non_latin_share("".join(_message_text(event)[:500] for event in islice(newest, 8))) > 0.5

    def unknown_names(self, text: str) -> Iterator[str]:
        """Yield the names in a text that do not occur here, and handles of events that do not exist."""
        last = max((event.seq for event in self.events), default=0)
        for found in dict.fromkeys(_HANDLE.findall(text)):
            if int(found[1:]) > last and not self._has_word(found):
                yield found
        for name in dict.fromkeys(_identifiers(text)):
            if not (self._has(name) or self._is_composed(name) or self._has_variant(name)):
                yield name

    def _has(self, name: str) -> bool:
        return name.lower().encode() in self._bytes or name.lower() in self._shown

    def _has_variant(self, name: str) -> bool:
        return name.lower().replace("-", "_").encode() in self._joined

    def _has_word(self, word: str) -> bool:
        """Return whether a word occurs on its own, judged by its first 100 occurrences."""
        searched, at = word.lower().encode(), -1
        for _ in range(100):
            at = self._bytes.find(searched, at + 1)
            around = (
                self._bytes[max(0, at - 1) : at] + self._bytes[at + len(searched) : at + len(searched) + 1]
            )
            if at < 0 or not any(chr(byte).isalnum() or byte == 95 for byte in around):
                return at >= 0
        return False

    def _is_composed(self, name: str) -> bool:
        """Return whether a name is composed of at most three names that occur, or is the plural of one."""
        if not _SEPARATOR.search(name.strip("./:#@-")):
            return len(name) > 5 and name.endswith("s") and self._has(name[:-1])
        used, rest = 0, name.strip("./:#@-")
        while rest and used < 3:
            cuts = [len(rest), *(found.start() for found in reversed(list(_SEPARATOR.finditer(rest))))]
            end = next((end for end in cuts if self._has_component(rest[:end])), 0)
            if not end:
                return False
            used, rest = used + 1, rest[end:].lstrip("./:#@-")
        return not rest

    def _has_component(self, name: str) -> bool:
        return self._has(name) and (len(name) > 3 or self._has_word(name))


def score_summary(summary: str, known: KnownNames) -> float | None:
    """Return the share of the source's rare names that occur in a summary; None when the source has none."""
    rare = known.rare_names
    return sum(name in summary for name in rare) / len(rare) if rare else None


def _source_text(event: Event) -> tuple[bool, str]:
    """Return whether an event is a tool result, and its text, reduced to both ends if it is long."""
    text = original_text(event.fact)
    short = text if len(text) <= 2 * MAX_EDGE_CHARS else text[:MAX_EDGE_CHARS] + "\n" + text[-MAX_EDGE_CHARS:]
    return isinstance(event.fact, ToolReturned), short


def _message_text(event: Event) -> str:
    """Return the text of a user or model message, with the arguments of calls."""
    fact = event.fact
    if not isinstance(fact, UserSaid | ModelSaid):
        return ""
    said = (part for part in parts(fact.content) if isinstance(part, Text | Call))
    return "\n".join(part.text if isinstance(part, Text) else part.arguments for part in said)


def non_latin_share(text: str) -> float:
    """Return the share of letters that are not Latin; 0 when there are too few to tell."""
    letters = [letter for letter in text if letter.isalpha()]
    return sum(letter > "\u024f" for letter in letters) / len(letters) if len(letters) >= 20 else 0.0


def _identifiers(text: str) -> Iterator[str]:
    """Yield the names in a text that look like code, files or ids, and so must be exact."""
    for found in find_names(text):
        for name in (found,) if "://" in found else found.replace("::", "/").split(":"):
            name = (
                _LINE_NUMBER.sub("", name).strip(".:-#/@")
                if not name.startswith("/")
                else _LINE_NUMBER.sub("", name)
            )
            if len(name) >= 5 and name.lower() not in _COMMON_TERMS and _is_code_like(name):
                yield name


def _is_code_like(name: str) -> bool:
    if _NOT_A_NAME.fullmatch(name):
        return False
    if "_" in name or _CAMEL_CASE.search(name) or _FILE_NAME.search(name):
        return True
    return (
        bool(_LETTER_AND_DIGIT.search(name))
        or (name.startswith("/") and name.count("/") > 1)
        or name.count("/") > 2
    )


# ── Drafts ───────────────────────────────────────────────────────────────────────────────────────────────

MAX_REPORTED_NAMES: Final = 12
"""Unknown names that are listed for the writer."""

_TAG: Final = re.compile(
    r"<(/?)(think|thinking|analysis|scratchpad|reasoning|reflection|thought|summary)\s*>", re.IGNORECASE
)
_SUMMARY_START: Final = re.compile(r"<summary>", re.IGNORECASE)
_SUMMARY_END: Final = re.compile(r"</summary\s*>", re.IGNORECASE)
_FAKE_TAG: Final = re.compile(
    r"\[(?=\s*foveal\b)|<(?=\||/?\s*(?:system|developer|user|assistant|human|tool|function|summary)\b)",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ValidatedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A draft and its faults."""

    text: str
    """The summary, without thinking and tags."""
    units: int = 0
    unusable: tuple[str, ...] = ()
    """Reasons why it cannot be used."""
    too_large: str = ""
    wrong_language: str = ""
    unknown_names: tuple[str, ...] = ()
    """Names that do not occur in its source."""

    @property
    def faults(self) -> list[str]:
        """All faults as sentences for the writer; none when the draft can be used as it is."""
        listed = ", ".join(f"`{name[:80]}`" for name in self.unknown_names[:MAX_REPORTED_NAMES])
        unknown = f"It names what does not occur in the conversation: {listed}." if listed else ""
        return [*self.unusable, *filter(None, (self.too_large, self.wrong_language, unknown))]


def validate_draft(
    draft: Draft,
    *,
    known: KnownNames,
    sections: Sequence[str],
    max_units: int,
    before: int,
    counter: Counter,
) -> ValidatedDraft:
    """Return a draft with its faults; `max_units` are allowed, and it must stay below the `before` it replaces."""
    text, is_closed = extract_summary(draft.text)
    missing = [name for name in sections if not has_section(text, name)]
    unusable = list(_unusable_reasons(draft, text, missing, is_closed=is_closed))
    if unusable:
        return ValidatedDraft(text=text, unusable=tuple(unusable))
    units = counter.count(text)
    if units >= before:
        unusable.append(f"It takes {units:,} tokens, and what it replaces takes {before:,}.")
    return ValidatedDraft(
        text=text,
        units=units,
        unusable=tuple(unusable),
        too_large=f"It takes {units:,} tokens; {max_units:,} are allowed." if units > max_units else "",
        wrong_language=_wrong_language(text, known),
        unknown_names=tuple(known.unknown_names(text)),
    )


def _unusable_reasons(draft: Draft, text: str, missing: Sequence[str], *, is_closed: bool) -> Iterator[str]:
    if draft.stop == "refused":
        yield "It was refused."
    if draft.stop == "tools":
        yield "It calls a tool instead of writing."
    if not draft.text.strip():
        yield "It is empty."
    elif not text:
        yield "It holds no summary, only thoughts or tags."
    elif not has_content(text):
        yield "It has headings and nothing under them."
    elif draft.stop == "length" or not (is_closed or (draft.stop == "end" and not missing)):
        yield "It was cut off: it does not end with </summary>."
    if text and missing:
        yield "It has no section " + ", ".join(f"`## {name}`" for name in missing) + "."


# ── Text of a draft ──────────────────────────────────────────────────────────────────────────────────────


def extract_summary(text: str) -> tuple[str, bool]:
    """Return the summary in a reply, without thinking and tags, and whether it was closed."""
    spoken = _without_thinking(text)
    closing = list(_SUMMARY_END.finditer(spoken))
    if closing:
        spoken = spoken[: closing[-1].start()]
    opening = _SUMMARY_START.search(spoken)
    if opening:
        spoken = spoken[opening.end() :]
    return neutralise(_SUMMARY_END.sub("", _SUMMARY_START.sub("", spoken)).strip()), bool(closing)


def _without_thinking(text: str) -> str:
    """Return a reply without the thinking before its summary, even if a tag of it is missing."""
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
    opening = _SUMMARY_START.search(text, start)
    return kept + text[opening.start() :] if opening else kept


def neutralise(text: str) -> str:
    """Return a text without control characters and without anything that looks like a role tag or a Foveal line."""
    text = _CONTROL.sub(" ", text.replace("\r\n", "\n"))
    return _FAKE_TAG.sub(lambda found: "(" if found[0] == "[" else "‹", text)


def has_section(text: str, name: str) -> bool:
    """Return whether a text has a heading, in any markup."""
    heading = (
        rf"^[ \t]*(?:#{{1,6}}[ \t]*)?(?:\*\*|__)?{re.escape(name)}(?:\*\*|__)?[ \t]*:?(?:\*\*|__)?[ \t]*$"
    )
    return re.search(heading, text, re.MULTILINE | re.IGNORECASE) is not None


def remove_lines_naming(text: str, names_to_remove: Iterable[str]) -> str:
    """Return a text without the lines that contain these names; headings stay."""
    removed = tuple(names_to_remove)
    kept = [
        line
        for line in text.split("\n")
        if line.lstrip().startswith("#") or not any(name in line for name in removed)
    ]
    return "\n".join(kept).strip()


def has_content(text: str) -> bool:
    """Return whether a text has more than headings and dashes."""
    return any(len(line.strip(" -*")) > 2 for line in text.split("\n") if not line.lstrip().startswith("#"))


def _wrong_language(text: str, known: KnownNames) -> str:
    prose = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if known.is_non_latin and len(prose) > 60 and non_latin_share(prose) < 0.05:
        return "It is not in the language in which the user speaks."
    return ""
