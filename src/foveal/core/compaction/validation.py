"""Validation of a summary draft against the conversation that it summarises.

1. A draft is unusable when it is far too long, empty, contains only thinking, was cut off, calls tools, lacks a
   section, repeats its instructions (`prompt_overlap`), is in a script that the conversation does not use
   (`writing_systems`), or is not smaller than what it replaces. Its characters are counted before anything else, so
   an endless draft is neither searched nor tokenised.
2. Lines that imitate Foveal's own are quoted, not refused (`draft_text`).
3. Sentences about the user are removed, whatever they say (`user_sentences`): the ledger quotes the user.
4. A draft is to be improved when it is larger than asked for, or has names that do not occur in its source
   (`known_names`). A second draft is requested with the faults; then the lines with such names are removed.

Validation is pure and takes a few milliseconds for a thousand events with a megabyte of text. What it does not
find: wrong statements made of words that occur, omissions, and another language in the same script.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from foveal.core.compaction import draft_text, writing_systems
from foveal.core.compaction.known_names import KnownNames
from foveal.core.compaction.prompt_overlap import PromptPhrases
from foveal.core.compaction.summariser_protocol import Draft
from foveal.core.compaction.user_sentences import remove_user_sentences
from foveal.core.log.events import Event, ModelSaid, UserSaid, text_of
from foveal.core.tokens.counter import Counter

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
    text, is_closed = draft_text.extract_summary(draft.text)
    if len(text) > rules.max_chars:
        return _too_long(len(text), max_units)
    text = draft_text.quote_imitations(text, headings=rules.sections)
    missing = [name for name in rules.sections if not draft_text.has_section(text, name)]
    unusable = list(_form_faults(draft, text, missing, is_closed=is_closed)) or list(
        _text_faults(text, rules)
    )
    if unusable:
        return ValidatedDraft(text=text, unusable=tuple(unusable))
    text, removed = remove_user_sentences(text, headings=rules.sections)
    if not draft_text.has_content(text):
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
        text = draft_text.keep_lines(text, lambda line: not any(rules.known.unknown_names(line)))
    is_complete = all(draft_text.has_section(text, name) for name in rules.sections)
    is_faulty = any(rules.known.unknown_names(text))
    return text if is_complete and draft_text.has_content(text) and not is_faulty else ""


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
    elif not draft_text.has_content(text):
        yield "It has headings and nothing under them."
    elif draft.stop == "length" or not (is_closed or (draft.stop == "end" and not missing)):
        yield "It was cut off: it does not end with </summary>."
    if text and missing:
        yield "It has no section " + ", ".join(f"`## {name}`" for name in missing) + "."


def _text_faults(text: str, rules: DraftRules) -> Iterator[str]:
    if rules.instructions.is_repeated_in(text):
        yield "It repeats these instructions instead of reporting the conversation."
    script = writing_systems.find_foreign_script(text, _speech(rules.conversation))
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
