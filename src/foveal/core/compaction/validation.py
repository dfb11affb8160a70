"""Validation of a summary draft against the conversation that it summarises.

1. A draft is unusable when it is far too long, empty, contains only thinking, was cut off, calls tools, lacks a
   section, repeats its instructions (`PromptPhrases`), is in a script that the conversation does not use, or is
   not smaller than what it replaces. Its characters are counted before anything else, so an endless draft is
   neither searched nor tokenised.
2. Lines that imitate Foveal's own are quoted, not refused (`quote_imitations`).
3. Sentences about the user are removed, whatever they say (`user_sentences`): the ledger quotes the user.
4. A draft is to be improved when it is larger than asked for, or has names that do not occur in its source
   (`known_names`). A second draft is requested with the faults; then the lines with such names are removed.

The script of a text: words are counted by the Unicode block of their letters, without code, quotes and names, which
keep their script in any language. Han characters beside Kana are Japanese, beside Hangul they are Korean.

Validation is pure and takes a few milliseconds for a thousand events with a megabyte of text. What it does not
find: wrong statements made of words that occur, omissions, and another language in the same script.

Small models repeat their instructions instead of following them. Words are compared in phrases of four, without
case, punctuation, numbers and line breaks, so a copy with small changes is found as well.

1. A draft, or one of its sections, must not consist of the texts, the built-in ones or the user's prompt.
2. No sentence of a built-in text may stand among other words. A sentence of the user's prompt may: it can contain
   facts that belong into a summary.

Before that, the summary is read out of the model's reply:

1. `extract_summary` returns the text without thinking, tags, control characters and invisible characters.
2. `quote_imitations` puts `> ` before the lines that look like Foveal's own: the header and the end line of a
   summary, the headings and items of a ledger, pinned rules, speakers. The items below such a heading are quoted
   with it. Lines at the margin that begin like this are written by code alone.
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Final

import msgspec

from foveal.core.compaction.known_names import KnownNames
from foveal.core.compaction.ledger.allocation import SECTION_HEADINGS
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.compaction.user_sentences import remove_user_sentences
from foveal.core.log.events import Event, ModelSaid, UserSaid, text_of
from foveal.core.tokens.counter import Counter

QUOTE_MARK: Final = "> "
"""Begins a quoted line of a draft."""
_TAG: Final = re.compile(
    r"<(/?)(think|thinking|analysis|scratchpad|reasoning|reflection|thought|summary)\s*>", re.IGNORECASE
)
_SUMMARY_START: Final = re.compile(r"<summary>", re.IGNORECASE)
_SUMMARY_END: Final = re.compile(r"</summary\s*>", re.IGNORECASE)
_FAKE_TAG: Final = re.compile(
    r"[\[【［](?=\s*(?:foveal\b|/?INST\b))"
    r"|<(?=\||<\s*/?\s*SYS|/?\s*(?:system|developer|user|assistant|human|tool|function|summary|instructions?|foveal)\b)",
    re.IGNORECASE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)
"""Without meaning in any language; joiners such as U+200C are spelling and stay."""


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
    text = _INVISIBLE.sub("", _CONTROL.sub(" ", text.replace("\r\n", "\n")))
    return _FAKE_TAG.sub(lambda found: "‹" if found[0] == "<" else "(", text)


def has_section(text: str, name: str) -> bool:
    """Return whether a text has a heading, in any markup."""
    heading = (
        rf"^[ \t]*(?:#{{1,6}}[ \t]*)?(?:\*\*|__)?{re.escape(name)}(?:\*\*|__)?[ \t]*:?(?:\*\*|__)?[ \t]*$"
    )
    return re.search(heading, text, re.MULTILINE | re.IGNORECASE) is not None


def is_heading(line: str) -> bool:
    return line.lstrip().startswith("#")


def keep_lines(text: str, is_kept: Callable[[str], bool]) -> str:
    """Return the headings of a text and the lines that `is_kept` accepts."""
    return "\n".join(line for line in text.split("\n") if is_heading(line) or is_kept(line)).strip()


def has_content(text: str) -> bool:
    """Return whether a text has more than headings and dashes."""
    return any(len(line.strip(" -*>")) > 2 for line in text.split("\n") if not is_heading(line))


# ── Imitations ───────────────────────────────────────────────────────────────────────────────────────────

_MARKUP: Final = " \t#*_`|\"'"
_EARLIER_HEADINGS: Final = (
    "Requests, newest first:", "Said last, newest first:", "Unresolved errors, newest first:",
    "Files, latest state first:", "Commands, latest first:", "Files only read:",
)  # fmt: skip
"""Headings of ledgers that earlier versions wrote: they stand in older summaries beside a new one."""
_LEADS: Final = tuple(
    heading.partition(",")[0].rstrip(":").casefold() for heading in (*SECTION_HEADINGS, *_EARLIER_HEADINGS)
)
"""How the headings of a ledger begin."""
_OWN_LINE: Final = re.compile(
    r"[\[(【［‹<]?\s*foveal\b"
    r"|[\[(]?\s*(?:end of (?:the |this )?record|record (?:of e?\d|\d+ of \d))"
    r"|look back\s*:|pin(?:ned)?(?: rules?)?\s*:|standing(?: rules?| requests?)?\s*:|instructions? (?:from|of)\b"
    r"|part \d+ of \d+\b|\+ \d+ more\b|shown in full\b|(?:open|answered|standing)\s*:\s*e\d"
    r"|[\[(]\s*e\d+\s+(?:user|assistant|tool|system|developer|result|error)\b|\[calls \S+\]$"
    r"|the conversation, e\d+ to e\d+"
    r"|(?:system|developer|user|assistant|human|tool)(?: message| prompt)?\s*:"
)
"""The header, the end line and other lines that Foveal writes, and lines that claim to be spoken by a role."""
_LEDGER_ITEM: Final = re.compile(
    r"[-*•]\s+e\d+(?:[-–]e?\d+)?,\s*(?:open|done|answered|standing|shown in full)\b"
)
_BELOW_HEADING: Final = re.compile(r"\s|[-*•+>]|\d+[.)]\s")


def quote_imitations(text: str, *, headings: Collection[str] = ()) -> str:
    """Return a text with `> ` before the lines that imitate Foveal; `headings` are those that were asked for."""
    asked = frozenset(_plain(heading) for heading in headings)
    lines, is_below = [], False
    for line in text.split("\n"):
        if line.startswith(">"):
            lines.append(line)
            continue
        is_own = _plain(line) not in asked and _imitates(line)
        is_below = is_own or (is_below and bool(_BELOW_HEADING.match(line)))
        lines.append(QUOTE_MARK + line if is_below else line)
    return "\n".join(lines)


def _imitates(line: str) -> bool:
    if _LEDGER_ITEM.match(line.strip().casefold()):
        return True
    plain = _plain(line)
    return bool(_OWN_LINE.match(plain)) or any(
        plain.startswith(lead) and _reads_as_heading(line, plain, lead) for lead in _LEADS
    )


def _reads_as_heading(line: str, plain: str, lead: str) -> bool:
    """Return whether a line is a heading of a ledger and not a sentence that begins with its words."""
    rest = plain[len(lead) :]
    if is_heading(line) or rest in ("", ":"):
        return not rest[:1].isalnum()
    return rest[0] in ",(" and plain.endswith(":")


def _plain(line: str) -> str:
    """Return a line without markup around it, in one case and with compatible letters made equal."""
    return unicodedata.normalize("NFKC", line).casefold().strip(_MARKUP)


PHRASE_WORDS: Final = 4
"""Words of the phrases that are compared."""
MAX_COPIED_SHARE: Final = 0.2
"""Share of a draft's words that may be copied from the prompt; recorded summaries and answers have at most 0.05."""
MAX_COPIED_SECTION_SHARE: Final = 0.6
"""The same for one section."""
MIN_COPIED_WORDS: Final = 8
"""Fewer words that are also in the prompt are a coincidence."""
MAX_COPIED_RUN_WORDS: Final = 8
"""Words in a row that may be copied from a built-in text; recorded summaries and answers have at most 4."""

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\W\d_]+")
"""A word, or one character of a script that writes without blanks."""
_PLACEHOLDER: Final = re.compile(r"\{[a-z]+\}")


class PromptPhrases:
    """The phrases of the texts that a writer is given as instructions."""

    def __init__(self, texts: Iterable[str] = (), *, built_in: Iterable[str] = ()) -> None:
        self.texts: tuple[str, ...] = tuple(texts)
        self.built_in: tuple[str, ...] = tuple(built_in)

    @cached_property
    def _phrases(self) -> frozenset[tuple[str, ...]]:
        return self._built_in_phrases | _phrases_of(self.texts)

    @cached_property
    def _built_in_phrases(self) -> frozenset[tuple[str, ...]]:
        return _phrases_of(self.built_in)

    def is_repeated_in(self, draft: str) -> bool:
        """Return whether a draft, or one of its sections, consists of the prompt's text or has a sentence of it."""
        sections = [_words(section) for section in _sections(draft)]
        whole = [word for section in sections for word in section]
        return (
            self._is_copied(whole, MAX_COPIED_SHARE)
            or any(self._is_copied(section, MAX_COPIED_SECTION_SHARE) for section in sections)
            or any(map(self._has_copied_run, sections))
        )

    def _has_copied_run(self, words: Sequence[str]) -> bool:
        """Return whether too many words in a row are in phrases of a built-in text."""
        run = 0
        for phrase in _phrases(words):
            run = run + 1 if phrase in self._built_in_phrases else 0
            if run + PHRASE_WORDS - 1 > MAX_COPIED_RUN_WORDS:
                return True
        return False

    def _is_copied(self, words: Sequence[str], max_share: float) -> bool:
        """Return whether too many of the words belong to a phrase of the prompt."""
        copied: set[int] = set()
        for place, phrase in enumerate(_phrases(words)):
            if phrase in self._phrases:
                copied.update(range(place, place + PHRASE_WORDS))
        return len(copied) >= max(MIN_COPIED_WORDS, max_share * len(words))


def _phrases_of(texts: Iterable[str]) -> frozenset[tuple[str, ...]]:
    bodies = (_PLACEHOLDER.sub(" ", _body(text.split("\n"))) for text in texts)
    return frozenset(phrase for body in bodies for phrase in _phrases(_words(body)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _phrases(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(PHRASE_WORDS)), strict=False)


def _body(lines: Sequence[str]) -> str:
    """Return the lines without headings, which a draft is asked to copy."""
    return "\n".join(line for line in lines if not is_heading(line))


def _sections(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        if is_heading(line):
            yield "\n".join(lines)
            lines = []
        else:
            lines.append(line)
    yield "\n".join(lines)


MAX_CHARS_PER_UNIT: Final = 12
"""Characters of a draft for each unit that is accepted; prose has about four."""
MAX_EXTRA_CHARS: Final = 2_000
"""Characters that a draft may have beyond that: whitespace costs hardly any units."""
MAX_THINKING_CHARS: Final = 200_000
"""Characters that a reply may have beside its summary."""
MAX_REPORTED_NAMES: Final = 12
"""Unknown names that are listed for the writer."""
MAX_MODEL_MESSAGES_OF_SCRIPT: Final = 12
"""Newest messages of the model whose script is the conversation's, if the user said nothing."""


class DraftRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft is validated against."""

    known: KnownNames
    conversation: Sequence[Event]
    """The events in whose script a draft is written: those of the range, and messages around it."""
    instructions: PromptPhrases
    """The texts that the writer was given, which it must not repeat."""
    sections: tuple[str, ...]
    max_units: int
    """Units to ask for."""
    max_accepted_units: int
    """Units that are accepted if the second draft is no smaller."""
    counter: Counter

    @property
    def max_chars(self) -> int:
        """Characters of a text that can be within the accepted units."""
        return MAX_CHARS_PER_UNIT * max(self.max_units, self.max_accepted_units) + MAX_EXTRA_CHARS


class ValidatedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A draft and its faults."""

    text: str
    """The summary, without thinking, tags and sentences about the user, and with imitations quoted."""
    removed: int = 0
    """Sentences about the user that were removed."""
    units: int = 0
    unusable: tuple[str, ...] = ()
    """Reasons why it cannot be used."""
    too_large: str = ""
    unknown_names: tuple[str, ...] = ()
    """Names that do not occur in its source."""

    @property
    def faults(self) -> list[str]:
        """All faults as sentences for the writer; none when the draft can be used as it is."""
        listed = ", ".join(f"`{name[:80]}`" for name in self.unknown_names[:MAX_REPORTED_NAMES])
        unknown = f"It names what does not occur in the conversation: {listed}." if listed else ""
        return [*self.unusable, *filter(None, (self.too_large, unknown))]


def validate_draft(draft: Draft, rules: DraftRules, *, max_units: int, before: int) -> ValidatedDraft:
    """Return a draft with its faults; `max_units` are allowed, and it must stay below the `before` it replaces."""
    if len(draft.text) > rules.max_chars + MAX_THINKING_CHARS:
        return _too_long(len(draft.text), max_units)
    text, is_closed = extract_summary(draft.text)
    if len(text) > rules.max_chars:
        return _too_long(len(text), max_units)
    text = quote_imitations(text, headings=rules.sections)
    missing = [name for name in rules.sections if not has_section(text, name)]
    unusable = list(_form_faults(draft, text, missing, is_closed=is_closed)) or list(
        _text_faults(text, rules)
    )
    if unusable:
        return ValidatedDraft(text=text, unusable=tuple(unusable))
    text, removed = remove_user_sentences(text, headings=rules.sections)
    if not has_content(text):
        fault = "It speaks of the user alone. Write about the work: the record quotes the user."
        return ValidatedDraft(text=text, removed=removed, unusable=(fault,))
    units = rules.counter.count(text)
    if units >= before:
        unusable.append(f"It takes {units:,} tokens, and what it replaces takes {before:,}.")
    return ValidatedDraft(
        text=text,
        removed=removed,
        units=units,
        unusable=tuple(unusable),
        too_large=f"It takes {units:,} tokens; {max_units:,} are allowed." if units > max_units else "",
        unknown_names=tuple(rules.known.unknown_names(text)),
    )


def without_faulty_lines(draft: ValidatedDraft, rules: DraftRules) -> str:
    """Return a draft without lines that have unknown names.

    It is "" when a section or everything else is gone with them, or when what is left still has such a name."""
    text = draft.text
    if draft.unknown_names:
        text = keep_lines(text, lambda line: not any(rules.known.unknown_names(line)))
    is_complete = all(has_section(text, name) for name in rules.sections)
    is_faulty = any(rules.known.unknown_names(text))
    return text if is_complete and has_content(text) and not is_faulty else ""


def _too_long(length: int, max_units: int) -> ValidatedDraft:
    return ValidatedDraft(
        text="", unusable=(f"It has {length:,} characters; {max_units:,} tokens are allowed.",)
    )


def _form_faults(draft: Draft, text: str, missing: Sequence[str], *, is_closed: bool) -> Iterator[str]:
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


def _text_faults(text: str, rules: DraftRules) -> Iterator[str]:
    if rules.instructions.is_repeated_in(text):
        yield "It repeats these instructions instead of reporting the conversation."
    script = _find_foreign_script(text, _speech(rules.conversation))
    if script:
        yield f"It is not in the language in which the user speaks: the user does not write {script} script."


def _speech(conversation: Sequence[Event]) -> list[str]:
    """Return the user's messages, newest first, or the model's newest if there are none of the user."""
    facts = [event.fact for event in reversed(conversation)]
    messages = [text_of(fact.content) for fact in facts if isinstance(fact, UserSaid)]
    if any(map(str.strip, messages)):
        return messages
    said = (text_of(fact.content) for fact in facts if isinstance(fact, ModelSaid))
    return list(islice(said, MAX_MODEL_MESSAGES_OF_SCRIPT))


# ── Writing systems ────────────────────────────────────────────────────────────────────────────────────

MAX_SCRIPT_CHARS: Final = 8_000
"""Characters of a draft whose words are counted, and of the messages from which on ASCII is taken for Latin."""
MAX_SCRIPT_CHARS_PER_MESSAGE: Final = 600
MAX_SCRIPT_MESSAGES: Final = 1_000
MIN_SCRIPT_WORDS: Final = 8
"""With fewer words the script of a text is unknown."""
MIN_OWN_WORDS: Final = 3
"""Words in the messages that make a script one of the conversation's: one rule in it is enough."""
MIN_OWN_LATIN_SHARE: Final = 0.1
"""Share of the words that does the same for Latin script: technical terms are Latin in every language."""
MAX_FOREIGN_SHARE: Final = 0.6
"""Share of a draft's words that may be in scripts that the conversation does not use."""
MAX_FOREIGN_LATIN_SHARE: Final = 0.9
"""The same for Latin script."""

_BLOCKS: Final = {
    "Latin": "A-Za-zªº\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Cyrillic": "\u0400-\u052f",
    "Armenian": "\u0530-\u058f",
    "Hebrew": "\u0590-\u05ff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefe",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Gurmukhi": "\u0a00-\u0a7f",
    "Gujarati": "\u0a80-\u0aff",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Kannada": "\u0c80-\u0cff",
    "Malayalam": "\u0d00-\u0d7f",
    "Sinhala": "\u0d80-\u0dff",
    "Thai": "\u0e00-\u0e7f",
    "Lao": "\u0e80-\u0eff",
    "Burmese": "\u1000-\u109f",
    "Georgian": "\u10a0-\u10ff",
    "Ethiopic": "\u1200-\u137f",
    "Khmer": "\u1780-\u17ff",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
    "Kana": "\u3040-\u30ff\uff66-\uff9d",
    "Han": "\u3400-\u9fff\uf900-\ufaff",
}
_UNSPACED: Final = {"Thai": 5, "Lao": 5, "Burmese": 5, "Khmer": 5, "Kana": 2, "Han": 2}
"""Letters of a word, about, in scripts that write without blanks."""
_WORDS: Final = re.compile(
    "|".join(
        f"(?P<{script}>[{letters}]{{1,{_UNSPACED.get(script, 40)}}})" for script, letters in _BLOCKS.items()
    )
)
_NOT_PROSE: Final = re.compile(
    r"```[\s\S]*?(?:```|\Z)|`[^`\n]*`|^[ \t]*[>#][^\n]*|\"[^\"\n]*\"|“[^”\n]*”|«[^»\n]*»|「[^」\n]*」|『[^』\n]*』"
    r"|[A-Za-z.-]{0,60}[0-9_./\\@:=-][A-Za-z0-9_./\\@:=-]{0,200}[A-Za-z0-9]",
    re.MULTILINE,
)
"""Code, quotes, headings, and tokens with a digit or a separator in them."""


def _find_foreign_script(draft: str, messages: Iterable[str]) -> str:
    """Return the script of a draft if the conversation's messages do not use it, else ""."""
    own = _own_scripts(messages)
    words = _count_words(draft[:MAX_SCRIPT_CHARS])
    if not own or words.total() < MIN_SCRIPT_WORDS:
        return ""
    foreign = collections.Counter({script: count for script, count in words.items() if script not in own})
    if not foreign:
        return ""
    limit = MAX_FOREIGN_LATIN_SHARE if set(foreign) == {"Latin"} else MAX_FOREIGN_SHARE
    return foreign.most_common(1)[0][0] if foreign.total() / words.total() > limit else ""


def _own_scripts(messages: Iterable[str]) -> frozenset[str]:
    """Return the scripts of the conversation, none when there are too few words to tell."""
    words: collections.Counter[str] = collections.Counter()
    room = MAX_SCRIPT_CHARS
    for message in islice(messages, MAX_SCRIPT_MESSAGES):
        short = message[:MAX_SCRIPT_CHARS_PER_MESSAGE]
        # Further messages in ASCII have no script that is not known yet: they are not read.
        if room > 0 or not short.isascii():
            words.update(_count_words(short))
        room -= len(short)
    if words.total() < MIN_SCRIPT_WORDS // 2:
        return frozenset()
    return frozenset(script for script, count in words.items() if _is_own(script, count, words.total()))


def _is_own(script: str, count: int, total: int) -> bool:
    return count >= (MIN_OWN_LATIN_SHARE * total if script == "Latin" else MIN_OWN_WORDS)


def _count_words(text: str) -> collections.Counter[str]:
    """Return the number of words in each script."""
    prose = _NOT_PROSE.sub(" ", text)
    words = collections.Counter(found.lastgroup or "" for found in _WORDS.finditer(prose))
    # A Japanese text has Kana in every sentence, a Korean one hardly any Han.
    for joined in ("Kana", "Hangul"):
        if words["Han"] and words[joined] * 8 >= words["Han"]:
            words[joined] += words.pop("Han")
    return +words
